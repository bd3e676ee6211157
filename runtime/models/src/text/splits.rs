//! How texts are cut into words before byte-pair merging, by the names that GGUF files use (`tokenizer.ggml.pre`).
//!
//! A GGUF file carries tokens and merges but only the name of the pattern, so the patterns are constants of the format. They are
//! written here as in the models' own `tokenizer.json`. An unknown name is refused: a wrong pattern gives a model that
//! answers, only worse, and nobody sees why.

use super::error::TextError;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// Applied one after the other; each match becomes a piece of its own.
    pub(super) patterns: &'static [&'static str],
    /// A word that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether the begin token is put before a text, unless the file says.
    pub(super) add_bos: bool,
    /// Whether texts are brought to Unicode's composed form (NFC) first.
    pub(super) compose: bool,
}

const GPT2_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN_PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O_PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3_PATTERN: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const PLAIN: Split = Split { patterns: &[], ignore_merges: false, add_bos: false, compose: false };
const GPT2: Split = Split { patterns: &[GPT2_PATTERN], ..PLAIN };
const DIGITS: Split = Split { patterns: &[r"\p{N}", GPT2_PATTERN], ..PLAIN };
const LLAMA3: Split = Split { patterns: &[LLAMA3_PATTERN], ignore_merges: true, add_bos: true, ..PLAIN };
const LLAMA3_MERGED: Split = Split { patterns: &[LLAMA3_PATTERN], ..PLAIN };
const QWEN2: Split = Split { patterns: &[QWEN2_PATTERN], ..PLAIN };
const QWEN2_COMPOSED: Split = Split { compose: true, ..QWEN2 };
const QWEN35: Split = Split { patterns: &[QWEN35_PATTERN], compose: true, ..PLAIN };
const TEKKEN: Split = Split { patterns: &[TEKKEN_PATTERN], ignore_merges: true, add_bos: true, ..PLAIN };
const GPT4O: Split = Split { patterns: &[GPT4O_PATTERN], ..PLAIN };
const DEEPSEEK3: Split = Split { patterns: &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3_PATTERN], ..PLAIN };
const DEEPSEEK_CODER: Split = Split { patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"], ..PLAIN };
const FALCON: Split = Split { patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2_PATTERN, r"[0-9][0-9][0-9]"], ..PLAIN };
const BLOOM: Split = Split { patterns: &[r" ?[^(\s|.,!?…。，、।۔،)]+"], ..PLAIN };
const VIKING: Split = Split { patterns: &[r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"], ..PLAIN };
const DEFAULT: Split = Split { patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2_PATTERN, r"\p{N}+", r"[0-9][0-9][0-9]"], ..PLAIN };

/// Names and what they stand for.
const SPLITS: &[(&[&str], Split)] = &[
    (&["default"], DEFAULT),
    (&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"], LLAMA3),
    (&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], LLAMA3_MERGED),
    (&["qwen2"], QWEN2_COMPOSED),
    (&["deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"], QWEN2),
    (&["qwen35"], QWEN35),
    (&["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"], DIGITS),
    (&["gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "mellum", "exaone4", "a.x-4.0"], GPT2),
    (&["tekken"], TEKKEN),
    (&["gpt-4o", "llama4", "kanana2", "minimax-m2"], GPT4O),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm"], DEEPSEEK3),
    (&["deepseek-coder"], DEEPSEEK_CODER),
    (&["falcon"], FALCON),
    (&["poro-chat", "bloom", "gpt3-finnish"], BLOOM),
    (&["viking"], VIKING),
];

/// What `tokenizer.ggml.pre` stands for. Files from before there were names have none: they get `default`, as the field does.
///
/// # Errors
/// A name that is not in the table.
pub(super) fn split_by_name(name: Option<&str>) -> Result<Split, TextError> {
    let wanted = name.unwrap_or("default");
    let found = SPLITS.iter().find(|(names, _)| names.contains(&wanted));
    found.map(|(_, split)| *split).ok_or_else(|| {
        let known: Vec<&str> = SPLITS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        TextError::Unsupported(format!(
            "the GGUF file cuts words by '{wanted}' (tokenizer.ggml.pre), which this version does not know; it knows {}",
            known.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_and_named() {
        let error = split_by_name(Some("martian-bpe")).unwrap_err().to_string();
        assert!(error.contains("martian-bpe") && error.contains("llama-bpe"), "{error}");
        assert_eq!(split_by_name(None), split_by_name(Some("default")));
    }

    #[test]
    fn every_pattern_compiles_and_no_name_is_there_twice() {
        let mut names = Vec::new();
        for (some, split) in SPLITS {
            names.extend_from_slice(some);
            for pattern in split.patterns {
                tokenizers::pre_tokenizers::split::Split::new(
                    tokenizers::pre_tokenizers::split::SplitPattern::Regex((*pattern).to_owned()),
                    tokenizers::SplitDelimiterBehavior::Isolated,
                    false,
                )
                .unwrap_or_else(|error| panic!("{pattern}: {error}"));
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
