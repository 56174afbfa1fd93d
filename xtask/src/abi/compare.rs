//! Whether programs built against one description run with a library of another.

use super::description::{Constant, Description, Function, Struct};

/// What in `now` would break a program that was built against `before`. Functions, constants and
/// structs may be added, and fields at the end of a struct that begins with its size; everything
/// else stays as it was published.
pub fn breaks(before: &Description, now: &Description) -> Vec<String> {
    let mut found = Vec::new();
    if (&before.soname, before.pointer_bytes) != (&now.soname, now.pointer_bytes) {
        found.push(format!("{} has become {}", before.soname, now.soname));
    }
    for old in before.numbers() {
        let is_version = old.name == "PAGEDLLM_ABI_MINOR";
        match now.numbers().find(|new| new.name == old.name) {
            None => found.push(format!("{} is gone", old.name)),
            Some(new) if new.value != old.value && !is_version => {
                found.push(format!("{} was {} and is {}", old.name, old.value, new.value));
            }
            Some(_) => {}
        }
    }
    for group in &before.enums {
        let Some(values) = now.enums.iter().find(|other| other.name == group.name) else {
            found.push(format!("the numbers of {} are gone", group.name));
            continue;
        };
        found.extend(group.values.iter().filter_map(|old| reused(old, &values.values)));
    }
    changed(&mut found, &before.aliases, &now.aliases, |alias| &alias.name);
    changed(&mut found, &before.handles, &now.handles, |handle| &handle.name);
    for (old, new) in [(&before.functions, &now.functions), (&before.callbacks, &now.callbacks)] {
        calls(&mut found, old, new);
    }
    for old in &before.structs {
        match now.structs.iter().find(|new| new.name == old.name) {
            None => found.push(format!("{} is gone", old.name)),
            Some(new) => layout(&mut found, old, new),
        }
    }
    found
}

/// What `now` has and `before` had not.
pub fn additions(before: &Description, now: &Description) -> Vec<String> {
    fn names(of: &Description) -> Vec<String> {
        let structs = of.structs.iter().flat_map(|layout| {
            let fields = layout.fields.iter();
            fields.map(|field| format!("{}.{}", layout.name, field.name))
        });
        let numbers = of.numbers().map(|constant| constant.name.clone());
        let calls = of.functions.iter().chain(&of.callbacks).map(|call| call.name.clone());
        let handles = of.handles.iter().map(|handle| handle.name.clone());
        let aliases = of.aliases.iter().map(|alias| alias.name.clone());
        structs.chain(numbers).chain(calls).chain(handles).chain(aliases).collect()
    }
    let old = names(before);
    names(now).into_iter().filter(|name| !old.contains(name)).collect()
}

/// A number of a group that has got another name.
fn reused(old: &Constant, values: &[Constant]) -> Option<String> {
    let new = values.iter().find(|new| new.value == old.value && new.name != old.name)?;
    Some(format!("{} is {} now and {} was", old.value, new.name, old.name))
}

fn changed<T: PartialEq>(
    found: &mut Vec<String>,
    before: &[T],
    now: &[T],
    name: impl Fn(&T) -> &String,
) {
    for old in before {
        match now.iter().find(|new| name(new) == name(old)) {
            None => found.push(format!("{} is gone", name(old))),
            Some(new) if new != old => found.push(format!("{} has changed", name(old))),
            Some(_) => {}
        }
    }
}

/// Names of parameters are free.
fn calls(found: &mut Vec<String>, before: &[Function], now: &[Function]) {
    for old in before {
        let Some(new) = now.iter().find(|new| new.name == old.name) else {
            found.push(format!("{} is gone", old.name));
            continue;
        };
        let types = |call: &Function| {
            call.parameters.iter().map(|parameter| parameter.of.clone()).collect::<Vec<_>>()
        };
        if old.returns != new.returns || types(old) != types(new) {
            found.push(format!("{} takes or returns something else", old.name));
        }
    }
}

fn layout(found: &mut Vec<String>, old: &Struct, new: &Struct) {
    for field in &old.fields {
        let same = |other: &&super::description::Field| other.name == field.name;
        match new.fields.iter().find(same) {
            None => found.push(format!("{}.{} is gone", old.name, field.name)),
            Some(now) if (&now.of, now.offset) != (&field.of, field.offset) => {
                found.push(format!("{}.{} has changed or moved", old.name, field.name));
            }
            Some(_) => {}
        }
    }
    let has_grown = new.fields.len() > old.fields.len();
    if has_grown && !old.grows() {
        found.push(format!("{} has grown and does not say its size", old.name));
    }
    let squeezed = new.fields.iter().find(|field| {
        field.offset < old.size && !old.fields.iter().any(|other| other.name == field.name)
    });
    if let Some(field) = squeezed {
        found.push(format!("{}.{} lies inside of the published struct", old.name, field.name));
    }
}
