//! minijinja, made to behave like the Jinja2 environment in which models' chat templates are written.
//!
//! That environment is transformers' `ImmutableSandboxedEnvironment(trim_blocks, lstrip_blocks, loopcontrols)` with `tojson`,
//! `raise_exception` and `strftime_now`. Differences that templates can see are closed here: Python's methods on strings, lists
//! and dicts, what `{{ value }}` prints, what counts as a sequence, and that undefined values pass through filters.
//! Some remain: a bare `None` prints as nothing (on purpose: a prompt with the word "None" in it helps nobody), tuples print as
//! lists, and `~` writes booleans and lists in minijinja's way.
//!
//! A template comes with the weights and is run on every chat, so it is bounded: steps, nesting, output.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Rest, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior};
use minijinja_contrib::pycompat;

use super::dates::strftime;
use super::python::{JsonStyle, json, str_of};

/// Steps that one rendering may take: some 0.5 s of work. A chat of 4,000 messages through the longest templates tried needs a
/// fifth of it (0.1 s, measured).
const STEPS_MAX: u64 = 8_000_000;

/// Nested blocks and macro calls. Tool schemas are the deepest thing that templates descend into.
const NESTING_MAX: usize = 200;

/// What a template said through `raise_exception`.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment for chat templates, empty.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_fuel(Some(STEPS_MAX));
    env.set_recursion_limit(NESTING_MAX);
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, _, value| {
        if value.is_none() || value.is_undefined() {
            return Ok(());
        }
        match value.as_str() {
            Some(text) => out.write_str(text).map_err(Error::from),
            None => out.write_str(&str_of(value)?).map_err(Error::from),
        }
    });
    add_functions(&mut env);
    add_filters(&mut env);
    // Python asks for a length and items: strings, lists and dicts are sequences, and all of them can be walked through.
    let walkable = |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable);
    env.add_test("sequence", move |value: &Value| walkable(value));
    env.add_test("iterable", move |value: &Value| walkable(value) || value.is_undefined());
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    env
}

fn add_functions(env: &mut Environment<'_>) {
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let text = str_of(&message)?;
        Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
    });
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        strftime(format, now)
    });
}

fn add_filters(env: &mut Environment<'_>) {
    env.add_filter("tojson", to_json);
    env.add_filter("string", |value: &Value| str_of(value).map(Value::from));
    env.add_filter("trim", |value: &Value, characters: Option<&str>| -> Result<String, Error> {
        let text = if value.is_none() { String::new() } else { str_of(value)? };
        Ok(match characters {
            None => text.trim().to_owned(),
            Some(set) => text.trim_matches(|character| set.contains(character)).to_owned(),
        })
    });
    let length = |value: &Value| match value.is_undefined() {
        true => Ok(0),
        false => {
            value.len().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no length", value.kind())))
        }
    };
    for name in ["e", "escape"] {
        env.add_filter(name, |value: &Value| str_of(value).map(|text| escaped(&text)));
    }
    env.add_filter("round", |value: f64, precision: Option<i32>| {
        let scale = 10_f64.powi(precision.unwrap_or(0));
        let scaled = value * scale;
        if scaled.is_finite() { scaled.round_ties_even() / scale } else { value }
    });
    env.add_filter("length", length);
    env.add_filter("count", length);
}

/// `tojson`, with the arguments of transformers' own.
fn to_json(value: &Value, indent: Option<Value>, arguments: Kwargs) -> Result<Value, Error> {
    let mut style = JsonStyle { ensure_ascii: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false), ..JsonStyle::default() };
    style.sort_keys = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let indent = match indent {
        Some(indent) => Some(indent),
        None => arguments.get::<Option<Value>>("indent")?,
    };
    if let Some(indent) = indent.filter(|indent| !indent.is_none()) {
        style.indent = Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(16)),
        });
        style.item_separator = ",".into();
    }
    if let Some(separators) = arguments.get::<Option<Value>>("separators")?.filter(|pair| !pair.is_none()) {
        let pair: Vec<String> = separators.try_iter()?.map(|part| str_of(&part)).collect::<Result<_, _>>()?;
        let pair = <[String; 2]>::try_from(pair).map_err(|_| invalid("tojson: separators are two strings"))?;
        [style.item_separator, style.key_separator] = pair;
    }
    arguments.assert_all_used()?;
    json(value, &style).map(Value::from)
}

/// Text for HTML, with the entities that Python's markupsafe writes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn invalid(text: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

/// Python's methods that minijinja's own compatibility layer does not have, and that layer.
fn method(state: &State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let own = match value.as_str() {
        Some(text) => string_method(text, name, arguments)?,
        None if name == "copy" && matches!(value.kind(), ValueKind::Map | ValueKind::Seq) => Some(value.clone()),
        None if name == "index" && value.kind() == ValueKind::Seq => Some(position(value, arguments)?),
        None => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// `list.index`.
fn position(list: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(arguments)?;
    let found = list.try_iter()?.position(|item| item == *wanted);
    found.map(Value::from).ok_or_else(|| invalid("the value is not in the list"))
}

fn string_method(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            partition(text, separator, name == "rpartition")
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(arguments)?;
            rsplit(text, separator, limit)
        }
        "index" => {
            let (part,): (&str,) = from_args(arguments)?;
            let at = text.find(part).ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => Value::from(text.to_lowercase()),
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let (sign, digits) = if let Some(rest) = text.strip_prefix(['-', '+']) { (&text[..1], rest) } else { ("", text) };
            Value::from(format!("{sign}{}{digits}", padding("0", width, text)))
        }
        "ljust" | "rjust" => {
            let (width, fill): (usize, Option<&str>) = from_args(arguments)?;
            let padding = padding(fill.unwrap_or(" "), width, text);
            Value::from(if name == "ljust" { format!("{text}{padding}") } else { format!("{padding}{text}") })
        }
        _ => return Ok(None),
    }))
}

/// What is missing to `width`, at most 1,000 characters.
fn padding(fill: &str, width: usize, text: &str) -> String {
    fill.repeat(width.min(1_000).saturating_sub(text.chars().count()))
}

fn partition(text: &str, separator: &str, from_right: bool) -> Value {
    let found = if from_right { text.rfind(separator) } else { text.find(separator) };
    let parts = match found {
        Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    parts.into_iter().map(Value::from).collect()
}

fn rsplit(text: &str, separator: Option<&str>, limit: Option<i64>) -> Value {
    let parts = usize::try_from(limit.unwrap_or(-1)).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut pieces: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(parts, separator).collect(),
        None => text.split_whitespace().rev().collect(),
    };
    pieces.reverse();
    pieces.into_iter().map(Value::from).collect()
}
