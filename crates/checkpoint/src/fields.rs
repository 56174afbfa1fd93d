//! Typed access to a JSON object, with errors that name the field.

use pagedllm_core::TokenId;
use serde_json::{Map, Value};

use crate::CheckpointError;

/// Largest integer that a float holds exactly.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Longest list of special tokens.
const MAX_TOKENS: usize = 256;

/// A JSON object. A field that is null is absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Put before field names in errors.
    path: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(object: &'a Map<String, Value>, path: &'a str) -> Self {
        Self { object, path }
    }

    pub(crate) fn wrong(&self, field: &str, reason: impl Into<String>) -> CheckpointError {
        CheckpointError::Config { field: format!("{}{field}", self.path), reason: reason.into() }
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    /// A count; integers that were written as floats are read too.
    pub(crate) fn count(&self, field: &str) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let float = || {
            let number = value.as_f64()?;
            let is_count = (0.0..MAX_EXACT).contains(&number) && number.fract() == 0.0;
            is_count.then_some(number as u64)
        };
        let count = value.as_u64().or_else(float).and_then(|count| usize::try_from(count).ok());
        count.map(Some).ok_or_else(|| self.wrong(field, "must be a count"))
    }

    pub(crate) fn float(&self, field: &str) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(field, "must be a finite number"))
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(field, "must be true or false"))
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(field, "must be a string"))
    }

    pub(crate) fn object(
        &self,
        field: &str,
    ) -> Result<Option<&'a Map<String, Value>>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(field, "must be an object"))
    }

    pub(crate) fn array(&self, field: &str) -> Result<Option<&'a [Value]>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let array = value.as_array().map(Vec::as_slice);
        array.map(Some).ok_or_else(|| self.wrong(field, "must be an array"))
    }

    /// Token ids, given as one or as a list; -1 is how some files write "none".
    pub(crate) fn tokens(&self, field: &str) -> Result<Vec<TokenId>, CheckpointError> {
        let values = match self.get(field) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        if values.len() > MAX_TOKENS {
            return Err(
                self.wrong(field, format!("has {} tokens; at most {MAX_TOKENS}", values.len()))
            );
        }
        let tokens = values.iter().filter(|value| value.as_i64() != Some(-1)).map(|value| {
            let token = value.as_u64().and_then(|token| TokenId::try_from(token).ok());
            token.ok_or_else(|| self.wrong(field, "must be a token id or a list of them"))
        });
        tokens.collect()
    }

    /// Numbers of a list.
    pub(crate) fn floats(&self, field: &str) -> Result<Option<Vec<f32>>, CheckpointError> {
        let Some(values) = self.array(field)? else { return Ok(None) };
        let numbers = values.iter().map(|value| value.as_f64().map(|number| number as f32));
        let numbers: Option<Vec<f32>> = numbers.collect();
        numbers.map(Some).ok_or_else(|| self.wrong(field, "must be a list of numbers"))
    }
}
