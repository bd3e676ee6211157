//! A model's chat templates: compiled once, rendered for every chat.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;

use minijinja::Environment;
use serde_json::{Map, Value};

use super::chat::{self, Arguments, ChatRequest};
use super::codec::TEXT_BYTES_MAX;
use super::error::TextError;
use super::jinja::{self, Raised};

/// The longest template that is compiled: 1 MiB, ten times the longest of the field.
const SOURCE_BYTES_MAX: usize = 1 << 20;

/// The template that is used unless another one fits better.
const DEFAULT: &str = "default";
/// The template that some models have for chats with tools.
const TOOL_USE: &str = "tool_use";

/// The templates of a model, possibly none.
#[derive(Debug)]
pub(super) struct Templates {
    env: Environment<'static>,
    sources: Vec<(String, String)>,
    /// Templates that do not compile, and why. The model still answers plain completions.
    broken: BTreeMap<String, String>,
    /// What `bos_token` and the like stand for.
    roles: BTreeMap<String, String>,
}

impl Templates {
    /// Compiles (name, source) pairs. `roles` are the tokens that templates know by name.
    pub(super) fn new(sources: Vec<(String, String)>, mut roles: BTreeMap<String, String>) -> Self {
        for role in ["bos_token", "eos_token"] {
            roles.entry(role.into()).or_default();
        }
        let mut templates = Self { env: jinja::environment(), sources: Vec::new(), broken: BTreeMap::new(), roles };
        for (name, source) in sources {
            templates.add(name, source);
        }
        templates
    }

    fn add(&mut self, name: String, source: String) {
        let compiled = if source.len() > SOURCE_BYTES_MAX {
            Err(format!("it has {} bytes, over the limit of {SOURCE_BYTES_MAX}", source.len()))
        } else {
            self.env.add_template_owned(name.clone(), as_jinja_reads(&source)).map_err(|error| in_words(&error))
        };
        if let Err(why) = compiled {
            tracing::warn!(name, why, "a chat template cannot be used");
            self.broken.insert(name.clone(), why);
        }
        self.sources.push((name, source));
    }

    /// Whether there is one to answer chats with.
    pub(super) const fn exist(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Whether a template has this text in it.
    pub(super) fn mention(&self, text: &str) -> bool {
        self.sources.iter().any(|(_, source)| source.contains(text))
    }

    /// The prompt for a request.
    pub(super) fn render(&self, request: &ChatRequest) -> Result<String, TextError> {
        let name = self.choose(chat::tools(request)?.is_some())?;
        let values = self.render_with(name, request, Arguments::Values);
        match values {
            // Some templates paste a tool call's arguments as text. Which kind one is shows only when it is run.
            Err(TextError::Template(_)) => self.render_with(name, request, Arguments::Text).or(values),
            other => other,
        }
    }

    fn choose(&self, with_tools: bool) -> Result<&str, TextError> {
        let wanted = if with_tools { [TOOL_USE, DEFAULT] } else { [DEFAULT, DEFAULT] };
        let has = |name: &&str| self.sources.iter().any(|(known, _)| known == name);
        let only = || if let [(name, _)] = self.sources.as_slice() { Some(name.as_str()) } else { None };
        let name = wanted.into_iter().find(has).or_else(only).ok_or(TextError::NoChatTemplate)?;
        match self.broken.get(name) {
            Some(why) => Err(TextError::Template(why.clone())),
            None => Ok(name),
        }
    }

    fn render_with(&self, name: &str, request: &ChatRequest, arguments: Arguments) -> Result<String, TextError> {
        let template = self.env.get_template(name).map_err(|error| TextError::Template(in_words(&error)))?;
        let variables = self.variables(request, arguments)?;
        let mut prompt = BoundedText(Vec::new());
        template.render_captured_to(variables, &mut prompt).map_err(|error| as_text_error(&error))?;
        String::from_utf8(prompt.0).map_err(|error| TextError::Template(error.to_string()))
    }

    fn variables(&self, request: &ChatRequest, arguments: Arguments) -> Result<Map<String, Value>, TextError> {
        let developer_is_system = !self.mention("developer");
        let mut variables: Map<String, Value> = self.roles.iter().map(|(role, token)| (role.clone(), token.as_str().into())).collect();
        variables.extend(chat::extra(request)?.clone());
        variables.insert("messages".into(), chat::messages(request, arguments, developer_is_system)?.into());
        variables.insert("tools".into(), chat::tools(request)?.cloned().unwrap_or_default());
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        Ok(variables)
    }
}

/// A source as Jinja2 reads it: line ends are `\n`, and transformers' `{% generation %}` marks, which only training looks at, are
/// comments. (A comment trims like a block does.)
fn as_jinja_reads(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%") {
        let (before, block) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = block.find("%}") else { break };
        let inside = &block[2..end];
        let word = inside.trim_matches(['-', '+']).trim();
        if word == "generation" || word == "endgeneration" {
            out.push_str("{#");
            out.push_str(inside);
            out.push_str("#}");
        } else {
            out.push_str(&block[..end + 2]);
        }
        rest = &block[end + 2..];
    }
    out.push_str(rest);
    out
}

/// What went wrong in a template: its own words if it refused the messages.
fn as_text_error(error: &minijinja::Error) -> TextError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(text)) = inner.downcast_ref() {
            return TextError::Refused(text.clone());
        }
        source = inner.source();
    }
    TextError::Template(in_words(error))
}

/// An error with what caused it.
fn in_words(error: &minijinja::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}

/// Text up to the longest that can be encoded.
struct BoundedText(Vec<u8>);

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > TEXT_BYTES_MAX {
            return Err(io::Error::other(format!("the prompt is longer than {TEXT_BYTES_MAX} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
