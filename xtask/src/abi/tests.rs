//! The committed files, the compiler's opinion of them, and planted breaks.

use std::fmt::Write;
use std::process::Command;

use super::*;

#[test]
fn committed_files_are_those_of_the_header_and_follow_what_was_published() {
    check().expect("include/ and bindings/zig");
}

/// What a C compiler says about the published layouts and numbers, with the header of today.
#[test]
fn a_c_compiler_agrees_with_what_was_published() {
    if Command::new("gcc").arg("--version").output().is_err() {
        eprintln!("skipped: no gcc");
        return;
    }
    let published = read(PUBLISHED).expect("the interface as published");
    let mut source = "#include \"pagedllm.h\"\n".to_owned();
    let mut claim = |text: String| {
        writeln!(source, "_Static_assert({text}, \"published\");").expect("a string");
    };
    for constant in published.numbers().filter(|constant| constant.name != "PAGEDLLM_ABI_MINOR") {
        claim(format!("({}) == {}u", constant.name, constant.value));
    }
    for layout in &published.structs {
        let name = &layout.name;
        claim(format!("_Alignof({name}) == {}", layout.align));
        claim(format!("sizeof({name}) >= {}", layout.size));
        for field in &layout.fields {
            claim(format!("offsetof({name}, {}) == {}", field.name, field.offset));
            claim(format!("sizeof((({name} *)0)->{}) == {}", field.name, field.size));
        }
    }
    assert!(source.lines().count() > 150, "the description is nearly empty");
    let file = std::env::temp_dir().join(format!("pagedllm-abi-{}.c", std::process::id()));
    std::fs::write(&file, source).expect("a file");
    let compiled = Command::new("gcc")
        .args(["-fsyntax-only", "-std=c11", "-I"])
        .arg(root().join("include"))
        .arg(&file)
        .output()
        .expect("gcc runs");
    std::fs::remove_file(&file).expect("the file is there");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

fn with(change: impl FnOnce(&mut Description)) -> Result<()> {
    let before = described().expect("the header");
    let mut now = before.clone();
    change(&mut now);
    compatible(&before, &now)
}

fn layout<'d>(of: &'d mut Description, name: &str) -> &'d mut description::Struct {
    of.structs.iter_mut().find(|layout| layout.name == name).expect(name)
}

fn later(name: &str, at: u64) -> description::Field {
    let of = description::Type { base: "uint64_t".into(), is_const: false, pointers: 0 };
    description::Field { name: name.into(), of, offset: at, size: 8, doc: String::new() }
}

fn constant(name: &str, value: u64) -> description::Constant {
    description::Constant { name: name.into(), value, doc: String::new() }
}

#[test]
fn breaks_are_refused() {
    type Break = (&'static str, fn(&mut Description));
    let breaks: [Break; 13] = [
        ("a function is removed", |d| drop(d.functions.remove(0))),
        ("a parameter is added", |d| {
            let more = d.functions[0].parameters[0].clone();
            d.functions[0].parameters.push(more);
        }),
        ("a parameter changes its type", |d| d.functions[3].parameters[0].of.pointers += 1),
        ("a callback returns something else", |d| d.callbacks[0].returns.base = "int".into()),
        ("a field is removed", |d| drop(layout(d, "pagedllm_event").fields.remove(2))),
        ("a field moves", |d| layout(d, "pagedllm_error").fields[1].offset += 4),
        ("a field changes its type", |d| {
            layout(d, "pagedllm_request").fields[1].of.is_const = false;
        }),
        ("a struct without a size grows", |d| {
            layout(d, "pagedllm_text").fields.push(later("more", 16));
        }),
        ("a struct is removed", |d| drop(d.structs.remove(0))),
        ("a status code is reused", |d| {
            let group = d.enums.iter_mut().find(|group| group.name == "status").expect("status");
            group.values[0].name = "PAGEDLLM_OTHER".into();
        }),
        ("a number changes", |d| d.enums[0].values[0].value = 99),
        ("an alias changes", |d| d.aliases[0].of = "int64_t".into()),
        ("the loader finds another name", |d| d.soname = "libpagedllm.so.2".into()),
    ];
    for (what, plant) in breaks {
        assert!(
            with(|d| {
                plant(d);
                d.abi_minor += 1;
            })
            .is_err(),
            "{what}"
        );
    }
}

#[test]
fn additions_need_a_larger_minor_and_nothing_else() {
    let add: [fn(&mut Description); 4] = [
        |d| {
            let mut call = d.functions[0].clone();
            call.name = "pagedllm_later".into();
            d.functions.push(call);
        },
        |d| layout(d, "pagedllm_event").fields.push(later("later", 128)),
        |d| d.enums[0].values.push(constant("PAGEDLLM_ENDPOINT_LATER", 77)),
        |d| d.structs.push(description::Struct { name: "s".into(), ..d.structs[0].clone() }),
    ];
    for plant in add {
        assert!(with(plant).is_err(), "the minor stays");
        with(|d| {
            plant(d);
            d.abi_minor += 1;
        })
        .expect("an addition");
    }
    with(|d| d.functions[0].parameters[0].name = "other".into()).expect("names are free");
    with(|d| d.functions[0].doc = "Other words.".into()).expect("words are free");
}
