//! Reads `include/pagedllm.h`. cbindgen writes it, so its form is regular: a comment before each
//! item, one declaration at a time, no macros but numbers. Anything else is an error, so that
//! nothing is left out unseen. A full C parser would bring libclang along, and lose the comments.

use anyhow::{Context, Result, bail, ensure};

use super::description::{
    Alias, Constant, Description, Enum, Field, Function, Handle, Parameter, Struct, Type,
};

const POINTER_BYTES: u64 = 8;

/// Groups of constants: a name, the type that carries them, the prefix of their names. What has
/// none of the prefixes is a status.
const GROUPS: &[(&str, &str, &str)] = &[
    ("endpoint", "uint32_t", "PAGEDLLM_ENDPOINT_"),
    ("event", "uint32_t", "PAGEDLLM_EVENT_"),
    ("finish_reason", "uint32_t", "PAGEDLLM_FINISH_"),
    ("log_level", "uint32_t", "PAGEDLLM_LOG_"),
    ("metrics_format", "uint32_t", "PAGEDLLM_METRICS_"),
    ("status", "pagedllm_status", "PAGEDLLM_"),
];

/// Constants that stand alone.
const ALONE: &[&str] = &["PAGEDLLM_ABI_MAJOR", "PAGEDLLM_ABI_MINOR", "PAGEDLLM_FOREVER"];

/// Sizes of C's own types on 64-bit machines; they are aligned to their size.
const SCALARS: &[(&str, u64)] = &[
    ("int", 4),
    ("char", 1),
    ("float", 4),
    ("double", 8),
    ("int32_t", 4),
    ("int64_t", 8),
    ("uint32_t", 4),
    ("uint64_t", 8),
    ("size_t", 8),
];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Doc(String),
    Define(String, String),
    Word(String),
    Mark(char),
}

/// Reads a header.
///
/// # Errors
/// What is not of cbindgen's form, a size that is not known, a number that stands twice.
pub fn parse(header: &str) -> Result<Description> {
    let mut reader = Reader { tokens: split(header)?, place: 0 };
    let mut description = Description {
        library: "pagedllm".into(),
        pointer_bytes: POINTER_BYTES,
        enums: GROUPS
            .iter()
            .map(|(name, carrier, _)| Enum {
                name: (*name).into(),
                carrier: (*carrier).into(),
                values: Vec::new(),
            })
            .collect(),
        ..Description::default()
    };
    let mut doc = String::new();
    while let Some(token) = reader.next() {
        match token {
            Token::Doc(text) => {
                doc = text;
                continue;
            }
            Token::Define(name, value) => {
                let value = number(&value).with_context(|| name.clone())?;
                add_constant(&mut description, Constant { name, value, doc: doc.clone() })?;
            }
            Token::Word(word) if word == "typedef" => {
                reader.type_definition(&mut description, &doc)?;
            }
            Token::Word(_) => {
                reader.place -= 1;
                description.functions.push(reader.function(&doc)?);
            }
            Token::Mark(mark) => bail!("`{mark}` begins no declaration"),
        }
        doc.clear();
    }
    let version = |name: &str| {
        let constant = description.constants.iter().find(|constant| constant.name == name);
        constant.map(|constant| constant.value).with_context(|| format!("{name} is missing"))
    };
    let (major, minor) = (version("PAGEDLLM_ABI_MAJOR")?, version("PAGEDLLM_ABI_MINOR")?);
    (description.abi_major, description.abi_minor) = (major, minor);
    description.soname = format!("libpagedllm.so.{major}");
    Ok(description)
}

fn number(text: &str) -> Result<u64> {
    match text {
        "UINT32_MAX" => Ok(u64::from(u32::MAX)),
        text => text.parse().with_context(|| format!("`{text}` is no number")),
    }
}

fn add_constant(description: &mut Description, constant: Constant) -> Result<()> {
    if ALONE.contains(&constant.name.as_str()) {
        description.constants.push(constant);
        return Ok(());
    }
    let group = GROUPS.iter().position(|(_, _, prefix)| constant.name.starts_with(prefix));
    let group = group.with_context(|| format!("{} has another prefix", constant.name))?;
    let values = &mut description.enums[group].values;
    if let Some(other) = values.iter().find(|other| other.value == constant.value) {
        bail!("{} and {} are both {}", other.name, constant.name, constant.value);
    }
    values.push(constant);
    Ok(())
}

/// Comments, defines, words and marks. What stands there for the preprocessor or for C++ is left
/// out.
fn split(header: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(tokens);
        }
        if let Some(comment) = rest.strip_prefix("/*") {
            let (text, after) = comment.split_once("*/").context("a comment has no end")?;
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            tokens.push(Token::Doc(lines.join("\n").trim().to_owned()));
            rest = after;
        } else if rest.starts_with('#') {
            let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
            let mut words = line.split_whitespace();
            rest = match (words.next(), words.next(), words.next()) {
                (Some("#ifdef"), Some("__cplusplus"), None) => {
                    after.split_once("#endif").context("an #ifdef has no end")?.1
                }
                (Some("#define"), Some(name), Some(value)) => {
                    tokens.push(Token::Define(name.to_owned(), value.to_owned()));
                    after
                }
                _ => after,
            };
        } else {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            if len > 0 {
                tokens.push(Token::Word(rest[..len].to_owned()));
                rest = &rest[len..];
            } else {
                let mark = rest.chars().next().context("text")?;
                ensure!("*(){};,".contains(mark), "`{mark}` is not understood");
                tokens.push(Token::Mark(mark));
                rest = &rest[mark.len_utf8()..];
            }
        }
    }
}

struct Reader {
    tokens: Vec<Token>,
    place: usize,
}

impl Reader {
    fn next(&mut self) -> Option<Token> {
        self.place += 1;
        self.tokens.get(self.place - 1).cloned()
    }

    /// Takes a mark if it comes next.
    fn takes(&mut self, mark: char) -> bool {
        let is_next = self.tokens.get(self.place) == Some(&Token::Mark(mark));
        self.place += usize::from(is_next);
        is_next
    }

    fn mark(&mut self, mark: char) -> Result<()> {
        ensure!(self.takes(mark), "`{mark}` is missing before {:?}", self.tokens.get(self.place));
        Ok(())
    }

    fn word(&mut self) -> Result<String> {
        match self.next() {
            Some(Token::Word(word)) => Ok(word),
            other => bail!("a name is missing before {other:?}"),
        }
    }

    fn of_type(&mut self) -> Result<Type> {
        let mut base = self.word()?;
        let is_const = base == "const";
        if is_const {
            base = self.word()?;
        }
        if base == "struct" {
            base = self.word()?;
        }
        let mut pointers = 0;
        while self.takes('*') {
            pointers += 1;
        }
        Ok(Type { base, is_const, pointers })
    }

    fn parameters(&mut self) -> Result<Vec<Parameter>> {
        self.mark('(')?;
        let mut parameters = Vec::new();
        loop {
            let of = self.of_type()?;
            parameters.push(Parameter { name: self.word()?, of });
            if !self.takes(',') {
                break;
            }
        }
        self.mark(')')?;
        self.mark(';')?;
        Ok(parameters)
    }

    fn function(&mut self, doc: &str) -> Result<Function> {
        let returns = self.of_type()?;
        let name = self.word()?;
        let parameters = self.parameters().with_context(|| name.clone())?;
        Ok(Function { name, returns, parameters, doc: doc.to_owned() })
    }

    /// What follows `typedef`.
    fn type_definition(&mut self, description: &mut Description, doc: &str) -> Result<()> {
        let doc = doc.to_owned();
        let start = self.place;
        if self.word()? == "struct" {
            let name = self.word()?;
            if self.takes('{') {
                let layout = self.fields(description, name, doc)?;
                ensure!(self.word()? == layout.name, "{} has two names", layout.name);
                description.structs.push(layout);
            } else {
                ensure!(self.word()? == name, "{name} has two names");
                description.handles.push(Handle { name, doc });
            }
            return self.mark(';');
        }
        self.place = start;
        let of = self.of_type()?;
        if self.takes('(') {
            self.mark('*')?;
            let name = self.word()?;
            self.mark(')')?;
            let parameters = self.parameters().with_context(|| name.clone())?;
            description.callbacks.push(Function { name, returns: of, parameters, doc });
            return Ok(());
        }
        ensure!(of.pointers == 0 && !of.is_const, "{} is no plain type", of.base);
        description.aliases.push(Alias { name: self.word()?, of: of.base, doc });
        self.mark(';')
    }

    fn fields(&mut self, description: &Description, name: String, doc: String) -> Result<Struct> {
        let mut layout = Struct { name, size: 0, align: 1, fields: Vec::new(), doc };
        while !self.takes('}') {
            let doc = match self.tokens.get(self.place) {
                Some(Token::Doc(doc)) => {
                    self.place += 1;
                    doc.clone()
                }
                _ => String::new(),
            };
            let of = self.of_type()?;
            let name = self.word()?;
            self.mark(';').with_context(|| format!("{}.{name}", layout.name))?;
            let size = size_of_type(description, &of)?;
            let offset = layout.size.next_multiple_of(size);
            layout.size = offset + size;
            layout.align = layout.align.max(size);
            layout.fields.push(Field { name, of, offset, size, doc });
        }
        layout.size = layout.size.next_multiple_of(layout.align);
        Ok(layout)
    }
}

fn size_of_type(description: &Description, of: &Type) -> Result<u64> {
    let is_callback = description.callbacks.iter().any(|callback| callback.name == of.base);
    if of.pointers > 0 || is_callback {
        return Ok(POINTER_BYTES);
    }
    let alias = description.aliases.iter().find(|alias| alias.name == of.base);
    let base = alias.map_or(&of.base, |alias| &alias.of);
    let known = SCALARS.iter().find(|(name, _)| name == base);
    known.map(|(_, size)| *size).with_context(|| format!("the size of {base} is not known"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSIONS: &str = "#define PAGEDLLM_ABI_MAJOR 1\n#define PAGEDLLM_ABI_MINOR 2\n";

    fn read(text: &str) -> Result<Description> {
        parse(&format!("{VERSIONS}{text}"))
    }

    #[test]
    fn each_form_is_read() {
        let description = read(
            "/*\n One\n line.\n */\ntypedef struct h h;\ntypedef int32_t s;\n\
             typedef void (*cb)(void *user_data,\n size_t n);\n\
             /* S */\ntypedef struct t { /* a */ char c; s x; cb f; const struct t *const_ptr; } t;\n\
             s f(const struct t **out, float y);\n#ifdef __cplusplus\n} // no C\n#endif\n",
        )
        .expect("a header");
        assert_eq!((description.abi_major, description.abi_minor), (1, 2));
        assert_eq!(description.handles[0].doc, "One\nline.");
        let layout = &description.structs[0];
        let places: Vec<_> = layout.fields.iter().map(|f| (f.name.as_str(), f.offset)).collect();
        assert_eq!(places, [("c", 0), ("x", 4), ("f", 8), ("const_ptr", 16)]);
        assert_eq!((layout.size, layout.align), (24, 8));
        let function = &description.functions[0];
        let out = Type { base: "t".into(), is_const: true, pointers: 2 };
        assert_eq!((function.name.as_str(), &function.parameters[0].of), ("f", &out));
        assert_eq!(description.callbacks[0].parameters[1].name, "n");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "union u;",
            "typedef struct t { long l; } t;",
            "typedef struct t { int a[3]; } t;",
            "typedef struct a b;",
            "enum e { A };",
            "void f(int);",
            "#define PAGEDLLM_X (1 + 2)\n",
            "#define OTHER 1\n",
            "#define PAGEDLLM_A 7\n#define PAGEDLLM_B 7\n",
            "/* open",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
