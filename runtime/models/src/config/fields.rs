//! Reads fields of a JSON object; `null` and absent are the same.

use serde_json::Value;

use super::SIZE_MAX;
use crate::files::Fault;

/// An object, and what to call it in errors.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    object: &'a Value,
    of: &'a str,
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Value, of: &'a str) -> Self {
        Self { object, of }
    }

    /// The field, unless it is absent or null.
    pub(super) fn get(self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// An object inside this one.
    pub(super) fn inner(self, key: &'a str) -> Result<Option<Fields<'a>>, Fault> {
        match self.get(key) {
            None => Ok(None),
            Some(object) if object.is_object() => Ok(Some(Fields { object, of: key })),
            Some(other) => Err(self.wrong(key, "an object", other)),
        }
    }

    /// A whole number from 1 to [`SIZE_MAX`].
    pub(super) fn size(self, key: &str) -> Result<Option<usize>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64));
        match size.filter(|size| (1..=SIZE_MAX).contains(size)) {
            Some(size) => Ok(Some(size as usize)),
            None => Err(self.wrong(key, "a whole number above 0", value)),
        }
    }

    /// The same, which must be there.
    pub(super) fn need_size(self, key: &str) -> Result<usize, Fault> {
        self.size(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn number(self, key: &str) -> Result<Option<f64>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number", value))
    }

    /// A finite number above 0, which must be there.
    pub(super) fn need_positive(self, key: &str) -> Result<f64, Fault> {
        let number = self.number(key)?.ok_or_else(|| self.missing(key))?;
        match number.is_finite() && number > 0.0 {
            true => Ok(number),
            false => Err(Fault::Damaged(format!("{key:?} in {} is {number}, which makes no sense", self.of))),
        }
    }

    pub(super) fn flag(self, key: &str) -> Result<Option<bool>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false", value))
    }

    pub(super) fn text(self, key: &str) -> Result<Option<&'a str>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "text", value))
    }

    /// Token ids: one, or a list. Values that are no ids (-1 means "none" in some files) are passed over.
    pub(super) fn ids(self, key: &str) -> Vec<u32> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match self.get(key) {
            Some(Value::Array(values)) => values.iter().filter_map(id).collect(),
            Some(value) => id(value).into_iter().collect(),
            None => Vec::new(),
        }
    }

    pub(super) fn missing(self, key: &str) -> Fault {
        Fault::Damaged(format!("{} has no {key:?}", self.of))
    }

    fn wrong(self, key: &str, want: &str, have: &Value) -> Fault {
        let mut have = have.to_string();
        if let Some((end, _)) = have.char_indices().nth(60) {
            have.truncate(end);
            have.push('…');
        }
        Fault::Damaged(format!("{key:?} in {} should be {want} and is {have}", self.of))
    }
}
