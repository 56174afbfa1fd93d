//! The environment of a chat template: minijinja with what transformers adds to Jinja, and with
//! Python's ways where the two differ.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;

use super::limits::{MAX_RECURSION, charge, charged};
use super::python::{self, JsonStyle};
use super::strftime;

/// The name under which the template is compiled.
pub(crate) const NAME: &str = "chat";
/// The variable that holds what `strftime_now` prints, in seconds since 1970.
pub(crate) const NOW: &str = "__now__";

/// The words of a template that refused its input, as the source of the error that says so.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub(crate) String);

pub(crate) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    // Else an error would carry, and print, every variable.
    environment.set_debug(false);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(format);
    environment.set_unknown_method_callback(call_method);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |state: &State<'_, '_>, value: &Value| {
        charged(state, python::text(value)?)
    });
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("join", join);
    environment.add_filter("replace", replace);
    environment.add_filter("indent", indent);
    environment.add_filter("trim", trim);
    environment.add_filter("round", round);
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
            || value.is_undefined()
    });
    environment.add_test("iterable", |value: &Value| {
        value.is_undefined()
            || value.kind() == ValueKind::String
            || value.try_iter().is_ok() && !value.is_none()
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment
}

/// What `{{ value }}` puts into the text.
fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let write = |out: &mut Output<'_>, text: &str| {
        charge(state, text.len())?;
        out.write_str(text).map_err(Error::from)
    };
    match value.as_str() {
        Some(text) => write(out, text),
        None => write(out, &python::text(value)?),
    }
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(python::text(message)?);
    Err(Error::new(ErrorKind::InvalidOperation, raised.0.clone()).with_source(raised))
}

fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<Value, Error> {
    let now = state.lookup(NOW).and_then(|now| now.as_i64()).unwrap_or(0);
    charged(state, strftime::format(format, now)?)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    positional: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if positional.len() > NAMES.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let argument = |index: usize| -> Result<Value, Error> {
        match positional.get(index) {
            Some(value) => Ok(value.clone()),
            None => Ok(kwargs.get::<Option<Value>>(NAMES[index])?.unwrap_or(Value::from(()))),
        }
    };
    let (is_ascii, indent, separators, sorts_keys) =
        (argument(0)?, argument(1)?, argument(2)?, argument(3)?);
    kwargs.assert_all_used()?;
    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => Some(indent.as_str().unwrap_or_default().to_owned()),
        ValueKind::Bool => Some(if indent.is_true() { " " } else { "" }.to_owned()),
        _ => {
            let count = indent.as_i64().ok_or_else(|| invalid("indent is not a number"))?;
            let count = usize::try_from(count.clamp(0, 64)).unwrap_or(0);
            Some(" ".repeat(count))
        }
    };
    let mut style = JsonStyle::new(indent);
    style.is_ascii = is_ascii.is_true();
    style.sorts_keys = sorts_keys.is_true();
    if !separators.is_none() && !separators.is_undefined() {
        let parts: Vec<Value> = separators.try_iter()?.collect();
        let [item, key] = parts.as_slice() else {
            return Err(invalid("separators is not a pair"));
        };
        style.item_separator = python::text(item)?;
        style.key_separator = python::text(key)?;
    }
    charged(state, style.dumps(value)?)
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    match value.len() {
        Some(length) => Ok(length),
        None if value.kind() == ValueKind::Iterable => Ok(value.try_iter()?.count()),
        None => Err(invalid(format!("value of type {} has no length", value.kind()))),
    }
}

/// `join(value, d="", attribute=None)`.
fn join(
    state: &State<'_, '_>,
    value: &Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let separator = separator.or(kwargs.get("d")?);
    let attribute = attribute.or(kwargs.get("attribute")?);
    kwargs.assert_all_used()?;
    let separator = separator.map_or(Ok(String::new()), |value| python::text(&value))?;
    joined(state, value, &separator, attribute.as_ref())
}

fn joined(
    state: &State<'_, '_>,
    value: &Value,
    separator: &str,
    attribute: Option<&Value>,
) -> Result<Value, Error> {
    let mut out = String::new();
    if value.is_undefined() {
        return Ok(Value::from(out));
    }
    for (index, item) in value.try_iter()?.enumerate() {
        let item = match attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        let item = python::text(&item)?;
        charge(state, item.len() + separator.len())?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(&item);
    }
    Ok(Value::from(out))
}

/// `replace(s, old, new, count=None)`.
fn replace(
    state: &State<'_, '_>,
    value: &Value,
    old: &Value,
    new: &Value,
    count: Option<Value>,
) -> Result<Value, Error> {
    let (value, old, new) = (python::text(value)?, python::text(old)?, python::text(new)?);
    let count = count.and_then(|count| count.as_i64()).unwrap_or(-1);
    replaced(state, &value, &old, &new, count)
}

/// Python's `value.replace(old, new, count)`; a negative count is all.
fn replaced(
    state: &State<'_, '_>,
    value: &str,
    old: &str,
    new: &str,
    count: i64,
) -> Result<Value, Error> {
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let found = value.matches(old).take(limit).count();
    charge(state, value.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(Value::from(value.replacen(old, new, limit)))
}

/// `indent(s, width=4, first=False, blank=False)`.
fn indent(
    state: &State<'_, '_>,
    value: &Value,
    positional: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let argument = |index: usize, name: &'static str| match positional.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let width = argument(0, "width")?.unwrap_or(Value::from(4));
    let first = argument(1, "first")?.is_some_and(|value| value.is_true());
    let blank = argument(2, "blank")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    let text = python::text(value)?;
    let unit = match width.as_str() {
        Some(text) => text.to_owned(),
        None => {
            " ".repeat(width.as_usize().ok_or_else(|| invalid("width is no number"))?.min(1000))
        }
    };
    let lines = text.matches('\n').count() + 1;
    charge(state, text.len().saturating_add(lines.saturating_mul(unit.len())))?;
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&unit);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// `trim(value, chars=None)`.
fn trim(state: &State<'_, '_>, value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    let text = python::text(value)?;
    let trimmed = match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => text.trim(),
    };
    charged(state, trimmed.to_owned())
}

/// `round(value, precision=0, method="common")`; halves go to the even neighbour.
fn round(value: f64, precision: Option<i32>, method: Option<&str>) -> Result<f64, Error> {
    let scale = 10f64.powi(precision.unwrap_or(0).clamp(-300, 300));
    let round = match method.unwrap_or("common") {
        "common" => f64::round_ties_even,
        "ceil" => f64::ceil,
        "floor" => f64::floor,
        other => return Err(invalid(format!("round: unknown method {other:?}"))),
    };
    Ok(round(value * scale) / scale)
}

/// Python's methods of strings, dicts and lists.
fn call_method(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = call_text_method(state, text, method, args)
    {
        return result;
    }
    let result = pycompat::unknown_method_callback(state, value, method, args)?;
    charge(state, result.as_str().map_or(0, str::len))?;
    Ok(result)
}

/// The methods of strings that pycompat lacks, or that could make a very long text.
fn call_text_method(
    state: &State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Option<Result<Value, Error>> {
    let triple = |parts: [&str; 3]| Value::from_iter(parts.map(Value::from));
    let result = match method {
        "replace" => from_args(args).and_then(|(old, new, count): (&str, &str, Option<i64>)| {
            replaced(state, text, old, new, count.unwrap_or(-1))
        }),
        "join" => from_args(args).and_then(|(items,): (Value,)| joined(state, &items, text, None)),
        "partition" => from_args(args).map(|(separator,): (&str,)| {
            text.split_once(separator)
                .map_or(triple([text, "", ""]), |(left, right)| triple([left, separator, right]))
        }),
        "rpartition" => from_args(args).map(|(separator,): (&str,)| {
            text.rsplit_once(separator)
                .map_or(triple(["", "", text]), |(left, right)| triple([left, separator, right]))
        }),
        "rsplit" => from_args(args).map(|(separator, limit): (&str, Option<i64>)| {
            let limit = limit.and_then(|limit| usize::try_from(limit).ok());
            let limit = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
            let mut parts: Vec<&str> = text.rsplitn(limit, separator).collect();
            parts.reverse();
            Value::from_iter(parts.into_iter().map(Value::from))
        }),
        "removeprefix" => from_args(args)
            .map(|(prefix,): (&str,)| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => from_args(args)
            .map(|(suffix,): (&str,)| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        _ => return None,
    };
    Some(result)
}
