//! The text side of a GGUF file, from its metadata (`tokenizer.ggml.*`, `tokenizer.chat_template`).
//!
//! Two kinds of vocabulary are known. `gpt2`: tokens in GPT-2's alphabet with merges, cut into words by a named pattern; a
//! tokenizer equal to the model's own `tokenizer.json` is built from it. `llama`: SentencePiece tokens with scores.
//! Either way some tokens are found in texts as they read: those marked as control, user-defined or unknown.

use std::collections::BTreeMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as SplitBy, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::codec::{Codec, add_tokens, guarded};
use super::decoder::Rule;
use super::ends;
use super::error::TextError;
use super::model::{Around, TextModel};
use super::splits::{Split, split_by_name};
use super::spm::{Spm, SpmToken};
use super::template::Templates;
use super::tokens::{IDS_MAX, Lead, Sight, TokenTable};
use crate::files::gguf::Value;

/// GGUF's kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    fn from_number(number: Option<u64>) -> Self {
        match number {
            Some(2) => Self::Unknown,
            Some(3) => Self::Control,
            Some(4) => Self::UserDefined,
            Some(5) => Self::Unused,
            Some(6) => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Whether the token is found in texts as it reads.
    const fn is_found(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }

    const fn sight(self) -> Sight {
        match self {
            Self::Unknown | Self::Control | Self::Unused => Sight::Hidden,
            Self::Normal | Self::UserDefined | Self::Byte => Sight::Shown,
        }
    }
}

/// Reads the text side from a file's metadata.
pub(super) fn from_metadata(metadata: &BTreeMap<String, Value>) -> Result<TextModel, TextError> {
    let metadata = Metadata(metadata);
    let vocabulary = Vocabulary::new(&metadata)?;
    match metadata.text("tokenizer.ggml.model") {
        Some("gpt2") => bpe_model(&metadata, vocabulary),
        Some("llama") => spm_model(&metadata, vocabulary),
        Some(other) => Err(TextError::Unsupported(format!(
            "the GGUF file's tokenizer is of kind '{other}' (tokenizer.ggml.model); this version knows gpt2 and llama"
        ))),
        None => Err(TextError::Damaged("the GGUF file has no tokenizer (tokenizer.ggml.model): convert the model again".into())),
    }
}

fn bpe_model(metadata: &Metadata<'_>, vocabulary: Vocabulary<'_>) -> Result<TextModel, TextError> {
    let split = split_by_name(metadata.text("tokenizer.ggml.pre"))?;
    let tokenizer = tokenizer(metadata, &vocabulary, split)?;
    let table = vocabulary.table(&Rule::byte_level())?;
    let around = metadata.around(&vocabulary, split.add_bos);
    finish(metadata, &vocabulary, Codec::Tokenizer(Box::new(tokenizer)), table, around)
}

fn spm_model(metadata: &Metadata<'_>, vocabulary: Vocabulary<'_>) -> Result<TextModel, TextError> {
    let scores = metadata.list("tokenizer.ggml.scores").filter(|scores| scores.len() >= vocabulary.tokens.len());
    let scores = scores.ok_or_else(|| TextError::Damaged("the GGUF file has no score for each token (tokenizer.ggml.scores)".into()))?;
    let space_prefix = metadata.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let lead = if space_prefix { Lead::Strip { character: ' ', count: 1 } } else { Lead::Keep };
    let rule = Rule::sentencepiece(lead);
    let tokens: Vec<SpmToken<'_>> = vocabulary
        .iter()
        .zip(scores)
        .map(|((_, text, kind), score)| SpmToken {
            text,
            score: f32_of(score),
            special: kind.is_found(),
            byte: (kind == Kind::Byte).then(|| rule.bytes(text)).and_then(|bytes| bytes.first().copied()),
        })
        .collect();
    let unknown = metadata.role_id(&vocabulary, "unk_token").or_else(|| vocabulary.first_of(Kind::Unknown));
    let codec = Codec::Scores(Spm::new(&tokens, unknown, space_prefix));
    let table = vocabulary.table(&rule)?;
    let around = metadata.around(&vocabulary, true);
    finish(metadata, &vocabulary, codec, table, around)
}

fn finish(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
    codec: Codec,
    table: TokenTable,
    around: Around,
) -> Result<TextModel, TextError> {
    let roles = ROLES
        .iter()
        .filter_map(|(role, ..)| Some((String::from(*role), vocabulary.text_of(metadata.role_id(vocabulary, role)?)?.to_owned())));
    let templates = Templates::new(metadata.templates(), roles.collect());
    let end_ids = ends::settled(metadata.end_ids(vocabulary), table.len());
    Ok(TextModel::new(codec, table, around, end_ids, templates))
}

/// A tokenizer with the vocabulary's merges, as its `tokenizer.json` would have it.
fn tokenizer(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>, split: Split) -> Result<Tokenizer, TextError> {
    let damaged = |cause: String| TextError::Damaged(format!("the GGUF file's tokenizer cannot be built: {cause}"));
    let mut ids = Vocab::with_capacity(vocabulary.tokens.len());
    for (id, text, _) in vocabulary.iter() {
        ids.entry(text.to_owned()).or_insert(id);
    }
    let merges = merges(metadata, &ids)?;
    let model =
        guarded("build", || BPE::builder().vocab_and_merges(ids, merges).ignore_merges(split.ignore_merges).build()).map_err(damaged)?;
    let mut tokenizer = Tokenizer::new(model);
    if split.compose {
        tokenizer.with_normalizer(Some(NFC)).map_err(|error| damaged(error.to_string()))?;
    }
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in split.patterns {
        let by = SplitBy::new(SplitPattern::Regex((*pattern).to_owned()), SplitDelimiterBehavior::Isolated, false);
        steps.push(by.map_err(|error| damaged(error.to_string()))?.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    let found = vocabulary.iter().filter(|(_, text, kind)| kind.is_found() && !text.is_empty());
    let added = found.map(|(_, text, kind)| AddedToken::from(text, kind.sight() == Sight::Hidden).normalized(false)).collect();
    add_tokens(&mut tokenizer, added)?;
    Ok(tokenizer)
}

/// The merges, best first. Those that make no token are left out, as the field does: they could never apply.
fn merges(metadata: &Metadata<'_>, ids: &Vocab) -> Result<Vec<(String, String)>, TextError> {
    let list = metadata.list("tokenizer.ggml.merges");
    let list =
        list.ok_or_else(|| TextError::Damaged("the GGUF file has no merges (tokenizer.ggml.merges): convert the model again".into()))?;
    let pair = |merge: &Value| {
        // A token may itself begin with a space; none is empty.
        let text = merge.as_str()?;
        let at = text.char_indices().skip(1).find(|(_, character)| *character == ' ')?.0;
        let (left, right) = (&text[..at], &text[at + 1..]);
        let known = ids.contains_key(left) && ids.contains_key(right) && ids.contains_key(&format!("{left}{right}"));
        known.then(|| (left.to_owned(), right.to_owned()))
    };
    Ok(list.iter().filter_map(pair).collect())
}

/// Tokens and their kinds.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<Kind>,
}

impl<'a> Vocabulary<'a> {
    fn new(metadata: &Metadata<'a>) -> Result<Self, TextError> {
        let damaged = |cause: &str| TextError::Damaged(format!("the GGUF file's tokenizer is damaged: {cause}"));
        let list = metadata.list("tokenizer.ggml.tokens").ok_or_else(|| damaged("it has no list of tokens (tokenizer.ggml.tokens)"))?;
        if list.is_empty() || list.len() > IDS_MAX as usize {
            return Err(damaged(&format!("it has {} tokens, 1 to {IDS_MAX} are possible", list.len())));
        }
        let tokens: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
        let tokens = tokens.ok_or_else(|| damaged("a token is no string"))?;
        let numbers = metadata.list("tokenizer.ggml.token_type").unwrap_or_default();
        let mut kinds: Vec<Kind> = (0..tokens.len()).map(|index| Kind::from_number(numbers.get(index).and_then(Value::as_u64))).collect();
        // Conversions that forgot to mark the end of a turn as control exist; shown to people, it would be noise.
        let names = |name: &str| tokens.iter().position(|token| *token == name).and_then(|at| u32::try_from(at).ok());
        for id in ends::by_name(names, |_| true) {
            kinds[id as usize] = Kind::Control;
        }
        Ok(Self { tokens, kinds })
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &'a str, Kind)> {
        (0..).zip(&self.tokens).zip(&self.kinds).map(|((id, text), kind)| (id, *text, *kind))
    }

    fn table(&self, rule: &Rule) -> Result<TokenTable, TextError> {
        let bytes = |text: &str, kind| match kind {
            Kind::Normal | Kind::Byte => rule.bytes(text),
            _ => text.as_bytes().to_vec(),
        };
        TokenTable::new(self.iter().map(|(id, text, kind)| (id, bytes(text, kind), kind.sight())).collect(), rule.lead)
    }

    fn id_of(&self, name: &str) -> Option<u32> {
        self.iter().find(|(_, text, _)| *text == name).map(|(id, ..)| id)
    }

    fn first_of(&self, wanted: Kind) -> Option<u32> {
        self.iter().find(|(.., kind)| *kind == wanted).map(|(id, ..)| id)
    }

    fn text_of(&self, id: u32) -> Option<&'a str> {
        self.tokens.get(id as usize).copied()
    }
}

/// Roles of tokens: as templates call them, the metadata's key, and what SentencePiece vocabularies have if the key is absent.
const ROLES: &[(&str, &str, Option<u32>)] = &[
    ("bos_token", "tokenizer.ggml.bos_token_id", Some(1)),
    ("eos_token", "tokenizer.ggml.eos_token_id", Some(2)),
    ("unk_token", "tokenizer.ggml.unknown_token_id", Some(0)),
    ("sep_token", "tokenizer.ggml.seperator_token_id", None),
    ("pad_token", "tokenizer.ggml.padding_token_id", None),
    ("mask_token", "tokenizer.ggml.mask_token_id", None),
];

/// The metadata, by the kinds of values that are wanted. What is of another kind counts as absent.
#[derive(Clone, Copy)]
struct Metadata<'a>(&'a BTreeMap<String, Value>);

impl<'a> Metadata<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key)?.as_str()
    }

    fn list(&self, key: &str) -> Option<&'a [Value]> {
        self.0.get(key)?.as_array()
    }

    fn flag(&self, key: &str) -> Option<bool> {
        match self.0.get(key)? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    fn id(&self, key: &str, vocabulary: &Vocabulary<'_>) -> Option<u32> {
        let id = u32::try_from(self.0.get(key)?.as_u64()?).ok()?;
        ((id as usize) < vocabulary.tokens.len()).then_some(id)
    }

    fn role_id(&self, vocabulary: &Vocabulary<'_>, role: &str) -> Option<u32> {
        let (_, key, usual) = ROLES.iter().find(|(name, ..)| *name == role)?;
        let usual = usual.filter(|_| self.text("tokenizer.ggml.model") == Some("llama"));
        self.id(key, vocabulary).or_else(|| usual.filter(|_| !self.0.contains_key(*key)))
    }

    fn around(&self, vocabulary: &Vocabulary<'_>, add_bos_usually: bool) -> Around {
        let add_bos = self.flag("tokenizer.ggml.add_bos_token").unwrap_or(add_bos_usually);
        let add_eos = self.flag("tokenizer.ggml.add_eos_token").unwrap_or(false);
        let begin = self.role_id(vocabulary, "bos_token");
        Around { bos: begin.filter(|_| add_bos), eos: self.role_id(vocabulary, "eos_token").filter(|_| add_eos), begin }
    }

    fn end_ids(&self, vocabulary: &Vocabulary<'_>) -> Vec<u32> {
        let keys = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
        let mut ids: Vec<u32> = keys.iter().filter_map(|key| self.id(key, vocabulary)).collect();
        ids.extend(self.role_id(vocabulary, "eos_token"));
        ids.extend(ends::by_name(|name| vocabulary.id_of(name), |_| true));
        ids
    }

    /// The default template, and those with names.
    fn templates(&self) -> Vec<(String, String)> {
        const KEY: &str = "tokenizer.chat_template";
        let named = self.0.range(KEY.to_owned()..).take_while(|(key, _)| key.starts_with(KEY));
        let entry = |(key, value): (&String, &Value)| {
            let name = match key.strip_prefix(KEY)? {
                "" => "default",
                rest => rest.strip_prefix('.')?,
            };
            Some((name.to_owned(), value.as_str()?.to_owned()))
        };
        named.filter_map(entry).collect()
    }
}

/// A score. One that is no number joins last.
fn f32_of(value: &Value) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "scores are stored as f32")]
    let score = value.as_f64().unwrap_or(f64::NEG_INFINITY) as f32;
    score
}
