//! Values written the way Python writes them.
//!
//! Chat templates are made for Jinja2, where `{{ value }}` is Python's `str`, and `tojson` is Python's `json.dumps`: the model
//! was trained on exactly these spaces and quotes. minijinja writes JSON without spaces, `true` for `True`, and escapes HTML.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Nesting that is written at most. Requests come through a JSON parser that refuses 128.
const DEPTH_MAX: usize = 200;

/// How `json.dumps` shall write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonStyle {
    /// One level's indentation; without it everything stands on one line.
    pub(super) indent: Option<String>,
    /// Between two items, after a line's end if indented.
    pub(super) item_separator: String,
    /// Between key and value.
    pub(super) key_separator: String,
    /// Whether keys come in order.
    pub(super) sort_keys: bool,
    /// Whether characters beyond ASCII are escaped.
    pub(super) ensure_ascii: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self { indent: None, item_separator: ", ".into(), key_separator: ": ".into(), sort_keys: false, ensure_ascii: false }
    }
}

/// `json.dumps(value)`.
pub(super) fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Ok(out)
}

/// `str(value)`: strings as they are, everything else as [`repr`].
pub(super) fn str_of(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

fn write_json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, ["NaN", "Infinity", "-Infinity"])),
        ValueKind::String => write_json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            bracketed(out, style, depth, ['[', ']'], items, |out, item| write_json(out, &item, style, depth + 1))?;
        }
        ValueKind::Map => {
            let mut entries = entries_of(value)?;
            if style.sort_keys {
                entries.sort_by(|(left, _), (right, _)| left.cmp(right));
            }
            bracketed(out, style, depth, ['{', '}'], entries, |out, (key, item)| {
                write_json_string(out, &key, style.ensure_ascii);
                out.push_str(&style.key_separator);
                write_json(out, &item, style, depth + 1)
            })?;
        }
        other => return Err(Error::new(ErrorKind::InvalidOperation, format!("a value of type {other} is not JSON serializable"))),
    }
    Ok(())
}

/// Items between brackets, on lines of their own if indented.
fn bracketed<T>(
    out: &mut String,
    style: &JsonStyle,
    depth: usize,
    [open, close]: [char; 2],
    items: Vec<T>,
    mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    };
    let empty = items.is_empty();
    out.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        line(out, depth + 1);
        write(out, item)?;
    }
    if !empty {
        line(out, depth);
    }
    out.push(close);
    Ok(())
}

/// A map's keys, as JSON writes them, and values.
fn entries_of(map: &Value) -> Result<Vec<(String, Value)>, Error> {
    let mut entries = Vec::new();
    for key in map.try_iter()? {
        let text = match key.kind() {
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => key.is_true().to_string(),
            _ => str_of(&key)?,
        };
        entries.push((text, map.get_item(&key)?));
    }
    Ok(entries)
}

fn write_json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => _ = write!(out, "\\u{:04x}", u32::from(control)),
            other if ensure_ascii && !(' '..='~').contains(&other) => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// `repr(value)`.
fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, ["nan", "inf", "-inf"])),
        ValueKind::String => write_repr_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            bracketed(out, &JsonStyle::default(), depth, ['[', ']'], items, |out, item| write_repr(out, &item, depth + 1))?;
        }
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter()?.collect();
            bracketed(out, &JsonStyle::default(), depth, ['{', '}'], keys, |out, key| {
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)
            })?;
        }
        _ => _ = write!(out, "{value}"),
    }
    Ok(())
}

/// Single quotes, unless the text has some and no double ones.
fn write_repr_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            same if same == quote => {
                out.push('\\');
                out.push(quote);
            }
            control if control < ' ' || ('\u{7f}'..='\u{a0}').contains(&control) || control == '\u{ad}' => {
                _ = write!(out, "\\x{:02x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push(quote);
}

/// A number; floats by the shortest digits that give the same value, as Python has them.
fn number(value: &Value, [nan, infinity, minus_infinity]: [&str; 3]) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    match float {
        float if float.is_nan() => nan.into(),
        f64::INFINITY => infinity.into(),
        f64::NEG_INFINITY => minus_infinity.into(),
        float => float_repr(float),
    }
}

/// Python's `repr` of a finite float: an exponent below 1e-4 and from 1e16 on, of two digits at least.
fn float_repr(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').expect("that is how Rust writes it");
    let exponent: i32 = exponent.parse().expect("a number");
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = float.to_string();
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("a value is nested more than {DEPTH_MAX} deep")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(json: serde_json::Value) -> Value {
        Value::from_serialize(&json)
    }

    #[test]
    fn json_has_pythons_separators_and_raw_characters() {
        let tool = value(json!({"b": "It's <hot> & \"cold\" ☀\n\u{1}", "a": [1, 2.0, 1e16, 1e-5, true, null, {}, []]}));
        assert_eq!(
            super::json(&tool, &JsonStyle::default()).unwrap(),
            r#"{"b": "It's <hot> & \"cold\" ☀\n\u0001", "a": [1, 2.0, 1e+16, 1e-05, true, null, {}, []]}"#
        );
        let style = JsonStyle { ensure_ascii: true, sort_keys: true, item_separator: ",".into(), key_separator: ":".into(), indent: None };
        assert_eq!(super::json(&value(json!({"z": "é🙂", "a": 1})), &style).unwrap(), r#"{"a":1,"z":"\u00e9\ud83d\ude42"}"#);
    }

    #[test]
    fn indented_json_stands_on_lines() {
        let style = JsonStyle { indent: Some("  ".into()), item_separator: ",".into(), ..JsonStyle::default() };
        let text = super::json(&value(json!({"a": [1, 2], "b": {}})), &style).unwrap();
        assert_eq!(text, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
    }

    #[test]
    fn str_is_pythons() {
        let text = str_of(&value(json!({"a": [true, null, "it's", "say \"it's\"", 0.5, 100.0]}))).unwrap();
        assert_eq!(text, r#"{'a': [True, None, "it's", 'say "it\'s"', 0.5, 100.0]}"#);
        assert_eq!(str_of(&Value::from("plain")).unwrap(), "plain");
    }

    #[test]
    fn floats_are_pythons() {
        for (float, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (1e-4, "0.0001"),
            (1e100, "1e+100"),
        ] {
            assert_eq!(float_repr(float), text);
        }
    }
}
