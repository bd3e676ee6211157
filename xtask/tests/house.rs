//! The house rules that a compiler does not know: which room may use which, and where a library may be named.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in the workspace").to_owned()
}

/// Which of our packages each may depend on, tests included. ARCHITECTURE.md draws the same.
const ARROWS: [(&str, &[&str]); 8] = [
    ("mesh-core", &[]),
    ("mesh-net", &["mesh-core"]),
    ("mesh-channel", &["mesh-core"]),
    ("mesh-models", &["mesh-core"]),
    ("mesh-actors", &["mesh-core"]),
    ("mesh-simulations", &["mesh-core", "mesh-actors", "mesh-models", "mesh-channel"]),
    ("mesh-runtime", &["mesh-core", "mesh-net", "mesh-channel", "mesh-actors", "mesh-models", "mesh-simulations"]),
    ("xtask", &[]),
];

/// Which packages may depend on a library that the project is named after.
const HOMES: [(&str, &[&str]); 7] = [
    ("candle-core", &["mesh-models"]),
    ("candle-nn", &["mesh-models"]),
    ("candle-transformers", &["mesh-models"]),
    ("libp2p", &["mesh-net"]),
    ("actix-web", &["mesh-runtime"]),
    ("actix", &["mesh-actors", "mesh-simulations", "mesh-runtime"]),
    ("bincode", &["mesh-core"]),
];

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().expect("a name").to_owned();
            let uses = package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .map(|dependency| dependency["name"].as_str().expect("a name").to_owned());
            // A package that names itself does so to switch features on for its own tests.
            (name.clone(), uses.filter(|used| *used != name).collect())
        })
        .collect()
}

#[test]
fn rooms_use_only_the_rooms_they_may() {
    let all = dependencies();
    let drawn: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    for (package, uses) in &all {
        let allowed =
            drawn.get(package.as_str()).unwrap_or_else(|| panic!("{package} is not drawn: add it to ARROWS and to ARCHITECTURE.md"));
        for used in uses.iter().filter(|used| all.contains_key(*used)) {
            assert!(allowed.contains(&used.as_str()), "{package} uses {used}, an arrow that ARCHITECTURE.md does not draw");
        }
    }
}

#[test]
fn libraries_stay_in_their_rooms() {
    let all = dependencies();
    for (library, homes) in HOMES {
        for (package, uses) in &all {
            assert!(!uses.contains(library) || homes.contains(&package.as_str()), "{package} names {library}, which belongs to {homes:?}");
        }
    }
}

#[test]
fn every_source_file_says_what_it_is_and_unsafe_has_few_homes() {
    let mut files = Vec::new();
    for room in ["actors", "mesh", "runtime", "simulations", "xtask"] {
        collect(&root().join(room), &mut files);
    }
    assert!(files.len() > 40, "only {} source files were found", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).expect("readable");
        let is_test = path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs");
        // A home of unsafe code opens with its reason; the head follows.
        assert!(
            is_test || text.lines().take(6).any(|line| line.starts_with("//!")),
            "{} has no head: say in a sentence what it is about",
            path.display()
        );
        // Its own first lines, or those of the module it is a part of.
        let parent = path.parent().expect("in a folder").with_extension("rs");
        let opens =
            text.contains("expect(unsafe_code") || std::fs::read_to_string(parent).is_ok_and(|text| text.contains("expect(unsafe_code"));
        let has_unsafe =
            text.lines().any(|line| line.trim_start().starts_with("unsafe ") || line.contains(" unsafe {") || line.contains("(unsafe {"));
        assert!(!has_unsafe || opens, "{} has unsafe code and does not open with its reason", path.display());
    }
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
