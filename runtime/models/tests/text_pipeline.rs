//! The pipeline: whatever the ids, its pieces joined are the whole; stop strings cut the same in a stream and at once.

mod text_common;

use std::sync::OnceLock;

use mesh_models::text::{Piece, Start, TextModel, TextPipeline};
use proptest::prelude::*;
use text_common::directory;

/// Byte-level (llama), SentencePiece with a leading space (mistral) and without (gemma3).
fn models() -> &'static [(&'static str, TextModel)] {
    static MODELS: OnceLock<Vec<(&'static str, TextModel)>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let read = |family: &'static str| (family, TextModel::from_hf_dir(&directory(family)).expect("reads"));
        ["llama", "mistral", "gemma3"].map(read).into()
    })
}

fn pieces(pipeline: &mut TextPipeline, ids: &[u32]) -> Vec<Piece> {
    ids.iter().map(|&id| pipeline.push(id)).collect()
}

/// The bytes of all tokens that are shown, as text: made without the pipeline.
fn whole(model: &TextModel, ids: &[u32]) -> String {
    let shown = ids.iter().filter(|&&id| !model.is_special(id) && !model.end_ids().contains(&id));
    String::from_utf8_lossy(&shown.flat_map(|&id| model.token_bytes(id)).collect::<Vec<u8>>()).into_owned()
}

/// Text up to the stop string that is complete first, made without the pipeline.
fn cut(text: &str, stops: &[String]) -> (String, bool) {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let found = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str())).map(String::len).max();
        if let Some(len) = found {
            return (text[..end - len].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

/// Ids of the fixtures' vocabularies of 512, often those of single bytes, so that characters are split and broken.
fn some_ids() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(prop_oneof![3 => 0_u32..260, 1 => 0_u32..512, 1 => Just(u32::MAX)], 0..40)
}

/// Emoji with joiners, CJK, combining marks, blanks, letters.
const TEXT: &str = "(👨\u{200d}👩|🙂|😸|日本語|한국|e\u{301}|ř|ů|[a-z ]{1,5}|  |\n|\t|[0-9]|é){0,16}";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn joined_pieces_of_any_ids_are_the_whole(ids in some_ids()) {
        for (family, model) in models() {
            let mut pipeline = model.pipeline(Vec::new());
            let pieces = pieces(&mut pipeline, &ids);
            let mut joined: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
            joined.push_str(&pipeline.finish());
            let whole = whole(model, &ids);
            prop_assert_eq!(&joined, &whole, "{}", family);
            // A text of its own is the same but for one leading space, where the vocabulary has one.
            let fresh = model.decode(&ids, Start::Fresh);
            let expected = if *family == "mistral" { whole.strip_prefix(' ').unwrap_or(&whole) } else { &whole };
            prop_assert_eq!(&fresh, expected, "{}", family);
        }
    }

    /// F88: no piece has a broken character; the text comes back; the same ids give the same pieces again.
    #[test]
    fn texts_come_back_whole_in_every_piece(text in TEXT) {
        for (family, model) in models() {
            let ids = model.encode(&text, false).expect("encodes");
            let mut pipeline = model.pipeline_from(Start::Fresh, Vec::new());
            let first = pieces(&mut pipeline, &ids);
            prop_assert!(first.iter().all(|piece| !piece.text.contains('\u{FFFD}')), "{}: {:?}", family, &first);
            let joined: String = first.iter().map(|piece| piece.text.as_str()).collect();
            prop_assert_eq!(joined + &pipeline.finish(), text.as_str(), "{}", family);
            let again = pieces(&mut model.pipeline_from(Start::Fresh, Vec::new()), &ids);
            prop_assert_eq!(first, again, "{}", family);
        }
    }

    /// F90: what is shown ends before the first stop string, wherever tokens begin and end.
    #[test]
    fn stop_strings_cut_where_they_are_complete(text in TEXT, from in 0_usize..12, len in 1_usize..5, other in "[a-z ]{1,2}|🙂") {
        let stop: String = text.chars().skip(from).take(len).collect();
        let stops = vec![stop, other];
        for (family, model) in models() {
            let ids = model.encode(&text, false).expect("encodes");
            let mut pipeline = model.pipeline_from(Start::Fresh, stops.clone());
            let pieces = pieces(&mut pipeline, &ids);
            let mut shown: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
            shown.push_str(&pipeline.finish());
            let (expected, stopped) = cut(&text, &stops);
            prop_assert_eq!(&shown, &expected, "{}: {:?}", family, &stops);
            prop_assert_eq!(pipeline.stopped(), stopped, "{}", family);
            // Once stopped, always stopped, and nothing follows.
            if let Some(at) = pieces.iter().position(|piece| piece.stopped) {
                prop_assert!(pieces[at + 1..].iter().all(|piece| piece.stopped && piece.text.is_empty()));
            }
        }
    }
}

/// F90 as it is tried by hand.
#[test]
fn alpha_and_nothing_of_the_stop() {
    for (family, model) in models() {
        let ids = model.encode("alpha beta gamma delta", false).expect("encodes");
        let mut pipeline = model.pipeline_from(Start::Fresh, vec!["beta gamma".into()]);
        let shown: String = pieces(&mut pipeline, &ids).into_iter().map(|piece| piece.text).collect();
        assert_eq!((shown.as_str(), pipeline.stopped(), pipeline.finish().as_str()), ("alpha ", true, ""), "{family}");
    }
}
