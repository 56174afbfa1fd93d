//! The interface as plain data: what `include/pagedllm.abi.json` holds.

use serde::{Deserialize, Serialize};

/// The whole interface. Sizes and offsets, in bytes, are those of 64-bit machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Name of the library for a linker.
    pub library: String,
    /// Name of the library for a loader.
    pub soname: String,
    pub abi_major: u64,
    pub abi_minor: u64,
    pub pointer_bytes: u64,
    pub constants: Vec<Constant>,
    /// Constants that belong together. No value stands twice in one.
    pub enums: Vec<Enum>,
    /// Names of integers.
    pub aliases: Vec<Alias>,
    pub callbacks: Vec<Function>,
    /// Structs whose fields are not published; they are used through pointers.
    pub handles: Vec<Handle>,
    pub structs: Vec<Struct>,
    pub functions: Vec<Function>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    pub name: String,
    pub value: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enum {
    pub name: String,
    /// The type that carries it.
    #[serde(rename = "type")]
    pub carrier: String,
    pub values: Vec<Constant>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    pub name: String,
    #[serde(rename = "type")]
    pub of: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handle {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Struct {
    pub name: String,
    pub size: u64,
    pub align: u64,
    pub fields: Vec<Field>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc: String,
}

impl Struct {
    /// Whether it may get more fields at its end: it then begins with its size.
    pub fn grows(&self) -> bool {
        self.fields.first().is_some_and(|field| field.name == "struct_size")
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    pub name: String,
    #[serde(rename = "type")]
    pub of: Type,
    pub offset: u64,
    pub size: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    pub name: String,
    pub returns: Type,
    pub parameters: Vec<Parameter>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    pub name: String,
    #[serde(rename = "type")]
    pub of: Type,
}

/// `base`, or a pointer to it, or a pointer to that. Only what lies at the end of all pointers is
/// ever `const`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Type {
    pub base: String,
    #[serde(default, rename = "const", skip_serializing_if = "is_false")]
    pub is_const: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pointers: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl Description {
    /// The same without words, to be compared with.
    pub fn without_docs(mut self) -> Self {
        let constants = self.enums.iter_mut().flat_map(|group| &mut group.values);
        constants.chain(&mut self.constants).for_each(|constant| constant.doc.clear());
        self.aliases.iter_mut().for_each(|alias| alias.doc.clear());
        self.handles.iter_mut().for_each(|handle| handle.doc.clear());
        self.functions.iter_mut().chain(&mut self.callbacks).for_each(|call| call.doc.clear());
        for layout in &mut self.structs {
            layout.doc.clear();
            layout.fields.iter_mut().for_each(|field| field.doc.clear());
        }
        self
    }

    /// All constants, grouped or not.
    pub fn numbers(&self) -> impl Iterator<Item = &Constant> {
        self.constants.iter().chain(self.enums.iter().flat_map(|group| &group.values))
    }
}
