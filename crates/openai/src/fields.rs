//! A request's fields, read one by one: each mistake names its field, `null` is the same as
//! absent, and what nobody reads is known.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::ApiError;
use crate::error::shorten;

/// Most values (numbers, strings, arrays and so on) in one body. A value takes many times its own
/// bytes once parsed, so the size of the body alone does not bound memory.
const MAX_VALUES: usize = 4 << 20;
/// Most names of ignored fields that are reported.
const MAX_IGNORED: usize = 16;

/// The fields of one JSON object that have not been read yet.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

/// Parses a body. Nesting is limited by the parser (128 levels).
pub(crate) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
    if body.is_empty() {
        return Err(ApiError::malformed("the body is empty; it must be a JSON object"));
    }
    if count_values(body) > MAX_VALUES {
        return Err(ApiError::malformed(format!("the body has more than {MAX_VALUES} values")));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(Fields(map)),
        Ok(_) => Err(ApiError::malformed("the body must be a JSON object")),
        Err(error) => Err(ApiError::malformed(format!("the body is not valid JSON: {error}"))),
    }
}

/// An upper bound of the values in a body, without parsing it.
fn count_values(body: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for &byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

impl Fields {
    /// The fields of an object inside the body.
    pub(crate) fn nested(name: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self(map)),
            _ => Err(ApiError::invalid(name, "must be an object")),
        }
    }

    /// Adds a field from elsewhere, which must not be there.
    pub(crate) fn add(&mut self, name: &str, value: Value) -> Result<(), ApiError> {
        match self.0.insert(name.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(ApiError::invalid(name, "is given twice")),
        }
    }

    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.0
    }

    /// Takes a field; `None` where it is absent or null.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(ApiError::invalid(name, "must be true or false")),
        }
    }

    pub(crate) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match integer(&value) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (low, high) = range.into_inner();
                let value = shorten(&value.to_string());
                let message = format!("{value} is not a whole number from {low} to {high}");
                Err(ApiError::invalid(name, message))
            }
        }
    }

    pub(crate) fn number(&mut self, name: &'static str) -> Result<Option<f32>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64().map(|number| number as f32)),
            Some(_) => Err(ApiError::invalid(name, "must be a number")),
        }
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::invalid(name, "must be a string")),
        }
    }

    pub(crate) fn array(&mut self, name: &'static str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(_) => Err(ApiError::invalid(name, "must be an array")),
        }
    }

    /// Refuses a field whose effect does not exist, unless its value asks for nothing.
    pub(crate) fn refuse(&mut self, name: &'static str, why: &str) -> Result<(), ApiError> {
        let asks_for_nothing = match self.take(name) {
            None | Some(Value::Bool(false)) => true,
            Some(Value::Array(values)) => values.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        };
        if asks_for_nothing { Ok(()) } else { Err(ApiError::invalid(name, why)) }
    }

    /// The fields that nobody read: their names, or an error where that is not allowed.
    pub(crate) fn finish(self, strict: bool) -> Result<Vec<String>, ApiError> {
        let mut ignored: Vec<String> = self
            .0
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| name)
            .collect();
        ignored.sort_unstable();
        match ignored.first() {
            Some(name) if strict => {
                Err(ApiError::invalid(name.clone(), "is not a known parameter"))
            }
            _ => {
                ignored.truncate(MAX_IGNORED);
                Ok(ignored.iter().map(|name| shorten(name)).collect())
            }
        }
    }
}

impl From<Map<String, Value>> for Fields {
    fn from(map: Map<String, Value>) -> Self {
        Self(map)
    }
}

/// A whole number, also when written as `1.0`.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    /// Beyond this, a float no longer holds every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number = value.as_number()?;
    number.as_i64().or_else(|| {
        let float = number.as_f64()?;
        (number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_bodies_are_errors() {
        let deep = format!("{{\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        let bodies: [&[u8]; 9] = [
            b"",
            b"{:",
            b"[]",
            b"null",
            b"{\"a\":\"\xc4\xe3\"}",
            b"{\"a\":\"\\ud800\"}",
            b"\xef\xbb\xbf{}",
            b"{\"a\":1e999}",
            deep.as_bytes(),
        ];
        for body in bodies {
            let error = parse(body).expect_err("malformed");
            assert_eq!((error.status, error.kind), (400, "invalid_request_error"));
        }
        assert!(parse(b"{\"a\":\"\\u0000\"}").is_ok(), "NUL is a character");
    }

    #[test]
    fn too_many_values_are_refused_before_they_are_parsed() {
        let body = format!("{{\"prompt\":[{}1]}}", "1,".repeat(MAX_VALUES));
        assert!(parse(body.as_bytes()).expect_err("too many").message.contains("values"));
        let text = format!("{{\"prompt\":\"{}\\\"\"}}", ",".repeat(MAX_VALUES + 1));
        assert!(parse(text.as_bytes()).is_ok(), "commas inside of strings don't count");
    }

    #[test]
    fn whole_numbers_are_exact_or_refused() {
        let cases = [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("1.0", Some(1)),
            ("9007199254740993", Some(9_007_199_254_740_993)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("18446744073709551616", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
            ("1.5", None),
            ("\"1\"", None),
            ("true", None),
        ];
        for (text, expected) in cases {
            assert_eq!(integer(&serde_json::from_str(text).expect(text)), expected, "{text}");
        }
    }
}
