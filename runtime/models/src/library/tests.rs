use std::fs;

use std::sync::atomic::AtomicBool;

use super::*;
use crate::model_files::Origin;

/// The built-in model's files as a directory.
fn write_model(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    for (name, bytes) in builtin::contents() {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

struct Watch;

impl Progress for Watch {
    fn loaded(&self, done: u64, all: u64) {
        assert!(done <= all);
    }
    fn give_up(&self) -> bool {
        false
    }
}

fn story_digest() -> Digest {
    Library::new(Vec::new(), 1).sheet(STORY).unwrap().digest
}

fn changed(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from));
    fs::write(file, text.replace(from, to)).unwrap();
}

#[test]
fn the_built_in_model_is_always_there() {
    let library = Library::new(vec![PathBuf::from("/no/such/directory")], 1);
    let list = library.list();
    assert_eq!((list.len(), list[0].name.as_str(), list[0].layers), (1, STORY, Layers::new(0, 8)));
    let sheet = library.sheet(STORY).unwrap();
    assert_eq!((sheet.architecture.as_str(), sheet.storage.as_str(), sheet.tied, sheet.context_max), ("llama", "bf16", true, 2048));
    assert_eq!((sheet.hidden_width, sheet.vocabulary, sheet.layers[0].kv_bytes), (128, 857, 2 * 2 * 32 * 4));
    assert_eq!(library.text(STORY).unwrap().end_ids(), [1]);
    assert_eq!(library.text_of(sheet.digest).unwrap().1.temperature, 0.7);
    let error = library.sheet("no-such-model").unwrap_err().to_string();
    assert!(error.contains("no-such-model") && error.contains("/no/such/directory") && error.contains(STORY), "{error}");
}

#[test]
fn models_are_found_by_name_by_path_and_by_address() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("Modelle für alle");
    let model = dir.join("Märchen 1");
    write_model(&model);
    let library = Library::new(vec![dir.clone()], 1);
    let digest = story_digest();
    assert_eq!(library.list().iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), [STORY, "Märchen 1"]);
    let path = model.to_str().unwrap();
    let address = format!("file://{}", path.replace(' ', "%20").replace('ä', "%C3%A4"));
    for name in ["Märchen 1", path, &address] {
        let sheet = library.sheet(name).unwrap();
        assert_eq!((sheet.name.as_str(), sheet.digest), ("Märchen 1", digest), "{name}");
    }
    assert!(library.text("Märchen 1").unwrap().has_chat_template());
    let alone = Library::new(vec![model], 1);
    assert_eq!(alone.list().len(), 2, "a directory that is itself a model");
}

#[test]
#[cfg(unix)]
fn links_and_read_only_directories_work_and_stay_untouched() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let root = tempfile::tempdir().unwrap();
    let (blobs, dir) = (root.path().join("blobs"), root.path().join("models"));
    write_model(&blobs);
    fs::create_dir_all(dir.join("linked files")).unwrap();
    for (name, _) in builtin::contents() {
        symlink(blobs.join(name), dir.join("linked files").join(name)).unwrap();
    }
    symlink(&blobs, dir.join("linked directory")).unwrap();
    fs::set_permissions(&blobs, fs::Permissions::from_mode(0o555)).unwrap();
    let library = Library::new(vec![dir], 1);
    for name in ["linked files", "linked directory"] {
        assert_eq!(library.sheet(name).unwrap().digest, story_digest());
        library.text(name).unwrap();
    }
    assert_eq!(fs::read_dir(&blobs).unwrap().count(), builtin::contents().len());
    fs::set_permissions(&blobs, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn what_is_wrong_with_a_model_is_said_with_file_cause_and_next_step() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    let library = Library::new(vec![root.path().to_owned()], 1);
    let error = |change: &dyn Fn()| {
        write_model(&dir);
        change();
        library.sheet("model").unwrap_err().to_string()
    };
    let weights = dir.join("model.safetensors");
    let config = dir.join("config.json");
    let bytes = fs::read(write_model_at(&dir)).unwrap();

    let text = error(&|| fs::write(&weights, &bytes[..bytes.len() - 1024]).unwrap());
    assert!(text.contains("model.safetensors") && text.contains("Fetch or copy"), "{text}");
    let mut huge = bytes.clone();
    huge[..8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    let text = error(&|| fs::write(&weights, &huge).unwrap());
    assert!(text.contains("1152921504606846976"), "{text}");
    let text = error(&|| fs::remove_file(&weights).unwrap());
    assert!(text.contains("holds no weights"), "{text}");
    let text = error(&|| changed(&config, "\"llama\"", "\"foonet\""));
    assert!(text.contains("\"foonet\"") && text.contains("llama, qwen3"), "{text}");
    let text = error(&|| changed(&config, "\"default\"", "\"yarn\""));
    assert!(text.contains("\"yarn\""), "{text}");
    let text = error(&|| changed(&config, "\"num_hidden_layers\": 8", "\"num_hidden_layers\": 9"));
    assert!(text.contains("model.layers.8."), "{text}");
    let text = error(&|| changed(&config, "\"intermediate_size\": 384", "\"intermediate_size\": 385"));
    assert!(text.contains("[384, 128]") && text.contains("[385, 128]"), "{text}");
    let text = error(&|| fs::write(&config, "{").unwrap());
    assert!(text.contains("config.json") && text.contains("JSON"), "{text}");
}

fn write_model_at(dir: &Path) -> PathBuf {
    write_model(dir);
    dir.join("model.safetensors")
}

#[test]
fn a_file_that_the_index_names_must_be_there() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    write_model(&dir);
    fs::rename(dir.join("model.safetensors"), dir.join("model-00001-of-00002.safetensors")).unwrap();
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
    let library = Library::new(vec![root.path().to_owned()], 1);
    let error = library.sheet("model").unwrap_err();
    assert!(
        matches!(&error, ModelError::Damaged(text) if text.contains("model-00002-of-00002.safetensors") && text.contains("incomplete")),
        "{error}"
    );
    fs::write(dir.join("model.safetensors.index.json"), r#"{"weight_map": {"a": "../../etc/passwd"}}"#).unwrap();
    assert!(library.sheet("model").unwrap_err().to_string().contains("no file beside it"));
}

#[test]
fn a_changed_file_is_seen_and_a_model_trained_on_has_another_digest() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    write_model(&dir);
    let library = Library::new(vec![root.path().to_owned()], 1);
    assert_eq!(library.sheet("model").unwrap().digest, story_digest());
    let mut bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].iter_mut().for_each(|byte| *byte ^= 1);
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    fs::write(dir.join("model.safetensors"), &bytes).unwrap();
    let file = fs::File::options().write(true).open(dir.join("model.safetensors")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_ne!(library.sheet("model").unwrap().digest, story_digest());
}

fn contents_at(origin: &Origin, cache: &mut cache::Cache) -> Result<Contents, ModelError> {
    contents::read(origin, cache, &mut pace::Pace::new(&AtomicBool::new(false)))
}

#[test]
fn contents_tell_one_changed_number_and_one_changed_template_by_file() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    write_model(&dir);
    let at = Origin::Directory(dir.clone());
    let read = || contents_at(&at, &mut cache::Cache::default()).unwrap();
    let story = contents_at(&Origin::Builtin, &mut cache::Cache::default()).unwrap();
    assert_eq!(read(), story, "the same files in another place");

    // One byte that the sheet's digest does not see: the copy looks the same and is not.
    let weights = write_model_at(&dir);
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, &bytes).unwrap();
    let library = Library::new(vec![root.path().to_owned()], 1);
    assert_eq!(library.sheet("model").unwrap().digest, story_digest());
    assert_ne!(read().digest, story.digest);
    assert_eq!(read().differing_from(&story), "model.safetensors");

    write_model(&dir);
    changed(&dir.join("tokenizer_config.json"), "user", "User");
    assert_eq!(library.sheet("model").unwrap().digest, story_digest());
    assert_ne!(read().digest, story.digest);
    assert_eq!(read().differing_from(&story), "tokenizer_config.json");
    // What is no part of the model does not count.
    write_model(&dir);
    fs::write(dir.join("notes.json"), "{}").unwrap();
    assert_eq!(read(), story);
}

#[test]
fn contents_do_not_depend_on_how_tensors_are_cut_into_files() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    write_model(&dir);
    let whole = contents_at(&Origin::Directory(dir.clone()), &mut cache::Cache::default()).unwrap();
    // The same file twice, each with half of the names in its header.
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes[8..end]).unwrap();
    let mut map = serde_json::Map::new();
    for part in 0..2 {
        let name = format!("model-0000{}-of-00002.safetensors", part + 1);
        let (mut own, mut data) = (serde_json::Map::new(), Vec::new());
        for (_, (tensor, about)) in
            header.iter().filter(|(name, _)| *name != "__metadata__").enumerate().filter(|(index, _)| index % 2 == part)
        {
            let at = |index: usize| about["data_offsets"][index].as_u64().unwrap() as usize;
            let mut about = about.clone();
            let begin = data.len();
            data.extend_from_slice(&bytes[end + at(0)..end + at(1)]);
            about["data_offsets"] = serde_json::json!([begin, data.len()]);
            own.insert(tensor.clone(), about);
            map.insert(tensor.clone(), name.clone().into());
        }
        let own = serde_json::to_vec(&own).unwrap();
        let file = [(own.len() as u64).to_le_bytes().as_slice(), &own, &data].concat();
        fs::write(dir.join(name), file).unwrap();
    }
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    fs::write(dir.join("model.safetensors.index.json"), serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let cut = contents_at(&Origin::Directory(dir), &mut cache::Cache::default()).unwrap();
    assert_eq!(cut.digest, whole.digest);
    assert_eq!(cut.files.len(), whole.files.len() + 1);
}

#[test]
fn contents_are_read_in_the_background_once_and_remembered_on_disk() {
    let root = tempfile::tempdir().unwrap();
    let (dir, kept) = (root.path().join("models"), root.path().join("contents.json"));
    write_model(&dir.join("model"));
    let library = Library::new(vec![dir.clone()], 1).with_contents_in(kept.clone());
    let digest = story_digest();
    let wait = |library: &Library| loop {
        if let Some(contents) = library.contents(digest).unwrap() {
            return contents;
        }
        std::thread::yield_now();
    };
    let origin = Origin::Directory(dir.join("model"));
    assert_eq!(wait(&library), contents_at(&Origin::Builtin, &mut cache::Cache::default()).unwrap());
    let first = contents_at(&origin, &mut cache::Cache::open(Some(&kept))).unwrap();
    // With everything remembered nothing is read: not even a thread that was told to stop minds.
    let stopped = AtomicBool::new(true);
    let again = contents::read(&origin, &mut cache::Cache::open(Some(&kept)), &mut pace::Pace::new(&stopped)).unwrap();
    assert_eq!(again, first);
    let unread = contents::read(&origin, &mut cache::Cache::default(), &mut pace::Pace::new(&stopped));
    assert_eq!(unread, Err(ModelError::GivenUp));
    assert!(matches!(
        loop {
            match library.contents(Digest([7; 32])) {
                Ok(None) => std::thread::yield_now(),
                other => break other,
            }
        },
        Err(ModelError::NotFound(_))
    ));
    library.stop_reading();
}

#[test]
fn a_model_loads_by_digest_whatever_it_is_called() {
    let root = tempfile::tempdir().unwrap();
    write_model(&root.path().join("anything"));
    let library = Library::new(vec![root.path().to_owned()], 1);
    let options = EngineOptions { threads: 1, numerics: Default::default(), context: 64, kv_bytes_max: 1 << 20 };
    let engine = library.load(story_digest(), Layers::new(2, 5), options, &Watch).unwrap();
    assert_eq!(engine.layers(), Layers::new(2, 5));
    let unknown = library.load(Digest([7; 32]), Layers::new(0, 1), options, &Watch);
    assert!(matches!(unknown.err(), Some(ModelError::NotFound(text)) if text.contains("anything")));
}

#[test]
fn defaults_come_from_the_generation_config() {
    let given = serde_json::json!({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05});
    let want = GenerationDefaults { temperature: 0.6, top_k: 20, top_p: 0.95, min_p: 0.0, repetition_penalty: 1.05 };
    assert_eq!(GenerationDefaults::of(&given), want);
    assert_eq!(GenerationDefaults::of(&serde_json::json!({"do_sample": false, "temperature": 0.6})).temperature, 0.0);
    let nonsense = serde_json::json!({"temperature": -1, "top_p": 7, "top_k": "all", "min_p": null});
    assert_eq!(GenerationDefaults::of(&nonsense), GenerationDefaults::default());
}
