//! The interface as Zig declarations, to show what the description is for. They keep C's names and
//! types; a program calls them as it would call C.

use std::fmt::Write;

use super::description::{Constant, Description, Function, Struct, Type};

/// Words that Zig keeps for itself and that occur as names.
const KEYWORDS: &[&str] = &["error", "struct", "test", "type", "align", "async"];

const HEAD: &str = "\
//! The C interface of pagedllm as Zig declarations. Generated from include/pagedllm.abi.json by
//! `cargo xtask abi`; docs/c-api.md is its contract.

const std = @import(\"std\");
";

/// The file `bindings/zig/pagedllm.zig`.
pub fn declarations(description: &Description) -> String {
    let mut out = HEAD.to_owned();
    for constant in &description.constants {
        out.push('\n');
        number(&mut out, constant, "u32");
    }
    for alias in &description.aliases {
        out.push('\n');
        doc(&mut out, "", &alias.doc);
        push(&mut out, format_args!("pub const {} = {};\n", alias.name, scalar(&alias.of)));
    }
    for group in &description.enums {
        out.push('\n');
        for constant in &group.values {
            number(&mut out, constant, scalar(&group.carrier));
        }
    }
    for handle in &description.handles {
        out.push('\n');
        doc(&mut out, "", &handle.doc);
        push(&mut out, format_args!("pub const {} = opaque {{}};\n", handle.name));
    }
    for callback in &description.callbacks {
        out.push('\n');
        doc(&mut out, "", &callback.doc);
        let of = signature(description, callback);
        let name = &callback.name;
        push(&mut out, format_args!("pub const {name} = ?*const fn {of};\n"));
    }
    for layout in &description.structs {
        structure(&mut out, description, layout);
    }
    for function in &description.functions {
        out.push('\n');
        doc(&mut out, "", &function.doc);
        let of = signature(description, function);
        let of = of.replacen(" callconv(.c)", "", 1);
        push(&mut out, format_args!("pub extern fn {}{of};\n", function.name));
    }
    layouts(&mut out, description);
    out
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes everything");
}

fn doc(out: &mut String, indent: &str, text: &str) {
    for line in text.lines() {
        push(out, format_args!("{indent}/// {line}\n"));
    }
}

fn number(out: &mut String, constant: &Constant, carrier: &str) {
    doc(out, "", &constant.doc);
    push(out, format_args!("pub const {}: {carrier} = {};\n", constant.name, constant.value));
}

fn structure(out: &mut String, description: &Description, layout: &Struct) {
    out.push('\n');
    doc(out, "", &layout.doc);
    push(out, format_args!("pub const {} = extern struct {{\n", layout.name));
    for field in &layout.fields {
        doc(out, "    ", &field.doc);
        let default = match field.name.as_str() {
            "struct_size" => format!("@sizeOf({})", layout.name),
            _ if is_nullable(description, &field.of) => "null".to_owned(),
            _ => "0".to_owned(),
        };
        let of = spelled(description, &field.of);
        push(out, format_args!("    {}: {of} = {default},\n", escaped(&field.name)));
    }
    out.push_str("};\n");
}

/// Checks by the compiler that its layouts are those described.
fn layouts(out: &mut String, description: &Description) {
    out.push_str("\ncomptime {\n    if (@sizeOf(usize) == 8) {\n");
    for layout in &description.structs {
        let name = &layout.name;
        push(out, format_args!("        std.debug.assert(@sizeOf({name}) == {});\n", layout.size));
        for field in &layout.fields {
            let (field, offset) = (&field.name, field.offset);
            push(
                out,
                format_args!(
                    "        std.debug.assert(@offsetOf({name}, \"{field}\") == {offset});\n"
                ),
            );
        }
    }
    out.push_str("    }\n}\n");
}

fn signature(description: &Description, function: &Function) -> String {
    let parameters: Vec<String> = function
        .parameters
        .iter()
        .map(|parameter| {
            format!("{}: {}", escaped(&parameter.name), spelled(description, &parameter.of))
        })
        .collect();
    let returns = spelled(description, &function.returns);
    format!("({}) callconv(.c) {returns}", parameters.join(", "))
}

fn is_nullable(description: &Description, of: &Type) -> bool {
    of.pointers > 0 || description.callbacks.iter().any(|callback| callback.name == of.base)
}

/// C does not say which pointers may be NULL or point to several, nor do these; only what has no
/// size is never several.
fn spelled(description: &Description, of: &Type) -> String {
    let is_const = if of.is_const { "const " } else { "" };
    match (of.base.as_str(), of.pointers) {
        ("void", 1) => format!("?*{is_const}anyopaque"),
        (base, 0) => scalar(base).to_owned(),
        (base, pointers) => {
            let outer = "[*c]".repeat(pointers as usize - 1);
            let is_handle = description.handles.iter().any(|handle| handle.name == base);
            let inner = if is_handle { "?*" } else { "[*c]" };
            format!("{outer}{inner}{is_const}{}", scalar(base))
        }
    }
}

fn scalar(name: &str) -> &str {
    match name {
        "int" => "c_int",
        "char" => "u8",
        "float" => "f32",
        "double" => "f64",
        "int32_t" => "i32",
        "int64_t" => "i64",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        "size_t" => "usize",
        other => other,
    }
}

fn escaped(name: &str) -> String {
    if KEYWORDS.contains(&name) { format!("@\"{name}\"") } else { name.to_owned() }
}
