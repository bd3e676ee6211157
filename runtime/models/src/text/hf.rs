//! The text side of a Hugging Face directory: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`,
//! `special_tokens_map.json`, `generation_config.json`, `config.json`. Only the first must be there.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::codec::{Codec, add_tokens, read_tokenizer};
use super::decoder::Rule;
use super::ends;
use super::error::TextError;
use super::model::{Around, TextModel};
use super::template::Templates;
use super::tokens::{Sight, TokenTable};

/// The largest file that is read here. The largest of the field (262,144 tokens with merges) has 33 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Tokens with a role, as `tokenizer_config.json` names them. Templates see them under these names.
const ROLES: &[&str] = &["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The files, as bytes. Empty means absent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HfFiles<'a> {
    pub(super) tokenizer: &'a [u8],
    pub(super) tokenizer_config: &'a [u8],
    pub(super) special_tokens_map: &'a [u8],
    pub(super) chat_template: &'a [u8],
    pub(super) generation_config: &'a [u8],
    pub(super) config: &'a [u8],
}

/// Reads the text side of a directory.
pub(super) fn from_dir(directory: &Path) -> Result<TextModel, TextError> {
    let read = |name: &str| read_file(directory, name);
    let Some(tokenizer) = read("tokenizer.json")? else { return Err(no_tokenizer(directory)) };
    let optional = |name: &str| read(name).map(Option::unwrap_or_default);
    from_files(HfFiles {
        tokenizer: &tokenizer,
        tokenizer_config: &optional("tokenizer_config.json")?,
        special_tokens_map: &optional("special_tokens_map.json")?,
        chat_template: &optional("chat_template.jinja")?,
        generation_config: &optional("generation_config.json")?,
        config: &optional("config.json")?,
    })
}

/// A bounded file, or `None` if it is not there.
fn read_file(directory: &Path, name: &str) -> Result<Option<Vec<u8>>, TextError> {
    let path = directory.join(name);
    let damaged = |cause: String| TextError::Damaged(format!("{}: {cause}", path.display()));
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(damaged(error.to_string())),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| damaged(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(damaged(format!("the file is larger than {FILE_BYTES_MAX} bytes, which no tokenizer is")));
    }
    Ok(Some(bytes))
}

fn no_tokenizer(directory: &Path) -> TextError {
    let other = ["tiktoken.model", "tokenizer.model", "vocab.json", "spiece.model"].into_iter().find(|name| directory.join(name).is_file());
    let directory = directory.display();
    match other {
        Some(name) => TextError::Unsupported(format!(
            "{directory} has its tokenizer in {name} only, which this version cannot read: put the model's tokenizer.json beside it"
        )),
        None => TextError::Damaged(format!("{directory} has no tokenizer.json: the download is incomplete, fetch it again")),
    }
}

/// Builds the text side from the files' contents.
pub(super) fn from_files(files: HfFiles<'_>) -> Result<TextModel, TextError> {
    let settings = Settings::new(files)?;
    let mut tokenizer = read_tokenizer(files.tokenizer)?;
    settings.extend(&mut tokenizer)?;
    let decoder = serde_json::to_value(tokenizer.get_decoder()).map_err(|error| TextError::Damaged(format!("tokenizer.json: {error}")))?;
    let rule = Rule::new(&decoder)?;
    let tokens = table(&tokenizer, &rule)?;
    let templates = settings.templates(files.chat_template)?;
    let end_ids = settings.end_ids(&tokenizer, &templates, tokens.len());
    let id_of_role = |role: &str| settings.roles.get(role).and_then(|token| tokenizer.token_to_id(token));
    let wants = |key: &str| settings.tokenizer_config[key].as_bool() == Some(true);
    let bos = id_of_role("bos_token");
    let around =
        Around { bos: bos.filter(|_| wants("add_bos_token")), eos: id_of_role("eos_token").filter(|_| wants("add_eos_token")), begin: bos };
    Ok(TextModel::new(Codec::Tokenizer(Box::new(tokenizer)), tokens, around, end_ids, templates))
}

/// The bytes of all tokens.
fn table(tokenizer: &Tokenizer, rule: &Rule) -> Result<TokenTable, TextError> {
    let ordinary = tokenizer.get_vocab(false).into_iter().map(|(token, id)| (id, rule.bytes(&token), Sight::Shown));
    let mut entries: Vec<_> = ordinary.collect();
    for (id, token) in tokenizer.get_added_tokens_decoder() {
        let sight = if token.special { Sight::Hidden } else { Sight::Shown };
        entries.push((id, rule.added_bytes(&token.content), sight));
    }
    TokenTable::new(entries, rule.lead)
}

/// What the files beside the tokenizer say.
struct Settings {
    tokenizer_config: Value,
    generation_config: Value,
    config: Value,
    /// Tokens with a role, by role.
    roles: BTreeMap<String, String>,
}

impl Settings {
    fn new(files: HfFiles<'_>) -> Result<Self, TextError> {
        let tokenizer_config = parse("tokenizer_config.json", files.tokenizer_config)?;
        let special_tokens_map = parse("special_tokens_map.json", files.special_tokens_map)?;
        let mut roles = BTreeMap::new();
        for role in ROLES {
            let token = token_text(&tokenizer_config[*role]).or_else(|| token_text(&special_tokens_map[*role]));
            if let Some(token) = token {
                roles.insert((*role).to_owned(), token.to_owned());
            }
        }
        Ok(Self {
            tokenizer_config,
            roles,
            generation_config: parse("generation_config.json", files.generation_config)?,
            config: parse("config.json", files.config)?,
        })
    }

    /// Adds what `tokenizer_config.json` knows of special tokens and `tokenizer.json` does not, as transformers does. Ids never move:
    /// a token is added only under the id that the file gives it.
    fn extend(&self, tokenizer: &mut Tokenizer) -> Result<(), TextError> {
        let mut listed: Vec<(u32, AddedToken)> = Vec::new();
        for (id, entry) in self.tokenizer_config["added_tokens_decoder"].as_object().into_iter().flatten() {
            if let (Ok(id), Some(token)) = (id.parse(), added_token(entry)) {
                listed.push((id, token));
            }
        }
        listed.sort_by_key(|(id, _)| *id);
        let known = tokenizer.get_added_tokens_decoder();
        let mut next = tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id.saturating_add(1));
        let mut missing = Vec::new();
        for (id, token) in listed {
            let there = tokenizer.token_to_id(&token.content);
            if known.contains_key(&id) || there.is_some_and(|there| there != id) {
                continue;
            }
            if there.is_none() {
                if id != next {
                    tracing::warn!(
                        id,
                        next,
                        token = token.content,
                        "tokenizer_config.json lists a token that does not follow the vocabulary; left out"
                    );
                    continue;
                }
                next += 1;
            }
            missing.push(token);
        }
        add_tokens(tokenizer, missing)?;
        self.mark_roles(tokenizer)
    }

    /// Tokens with a role are special, also where the vocabulary has them as ordinary ones.
    fn mark_roles(&self, tokenizer: &mut Tokenizer) -> Result<(), TextError> {
        let known = tokenizer.get_added_tokens_decoder();
        let ordinary = self.roles.values().filter(|token| tokenizer.token_to_id(token).is_some_and(|id| !known.contains_key(&id)));
        let tokens = ordinary.map(|token| AddedToken::from(token.as_str(), true).normalized(false)).collect();
        add_tokens(tokenizer, tokens)
    }

    fn templates(&self, file: &[u8]) -> Result<Templates, TextError> {
        let mut sources: Vec<(String, String)> = Vec::new();
        match &self.tokenizer_config["chat_template"] {
            Value::String(source) => sources.push(("default".into(), source.clone())),
            Value::Array(named) => {
                for entry in named {
                    if let (Some(name), Some(source)) = (entry["name"].as_str(), entry["template"].as_str()) {
                        sources.push((name.to_owned(), source.to_owned()));
                    }
                }
            }
            _ => {}
        }
        if !file.is_empty() {
            let source = std::str::from_utf8(file).map_err(|error| TextError::Damaged(format!("chat_template.jinja: {error}")))?;
            sources.retain(|(name, _)| name != "default");
            sources.push(("default".into(), source.to_owned()));
        }
        Ok(Templates::new(sources, self.roles.clone()))
    }

    fn end_ids(&self, tokenizer: &Tokenizer, templates: &Templates, vocabulary: u32) -> Vec<u32> {
        let mut ids = ends::in_config(&self.generation_config);
        ids.extend(ends::in_config(&self.config));
        ids.extend(self.roles.get("eos_token").and_then(|token| tokenizer.token_to_id(token)));
        let added = tokenizer.get_added_tokens_decoder();
        let special = |name: &str| tokenizer.token_to_id(name).filter(|id| added.contains_key(id));
        ids.extend(ends::by_name(special, |name| templates.mention(name)));
        ends::settled(ids, vocabulary)
    }
}

fn parse(name: &str, bytes: &[u8]) -> Result<Value, TextError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(bytes).map_err(|error| TextError::Damaged(format!("{name}: {error}; fetch the file again")))
}

/// A token written as a string or as an object.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str()).filter(|text| !text.is_empty())
}

fn added_token(entry: &Value) -> Option<AddedToken> {
    let flag = |name: &str| entry[name].as_bool().unwrap_or(false);
    let token = AddedToken::from(token_text(entry)?, flag("special"));
    Some(token.single_word(flag("single_word")).lstrip(flag("lstrip")).rstrip(flag("rstrip")).normalized(flag("normalized")))
}
