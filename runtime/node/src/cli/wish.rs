//! How a model is wished for: what `mesh plan` and `mesh deploy` both take.

use clap::Args;
use mesh_core::model::Layers;
use mesh_runtime::api::PlaceRequest;
use serde_json::{Value, json};

/// The model and the flags about where and how.
#[derive(Debug, Args)]
pub struct WishFlags {
    /// A path, the name of a directory or GGUF file in a model directory, or `builtin:story`
    model: String,
    /// Exactly this many stages [default: as few as fit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    split: Option<u16>,
    /// Exactly these layers on these nodes, for instance `a=0..3,b=3..8`: names or ids as `mesh status` shows them
    #[arg(long, value_name = "NODE=FIRST..END,…", value_delimiter = ',', value_parser = placed)]
    place: Vec<PlaceRequest>,
    /// Tokens a stream may have, prompt included [default: what the model was made for and memory allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Streams of full context to keep memory for
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..))]
    streams: u16,
}

impl WishFlags {
    /// The body of a request for it.
    #[must_use]
    pub fn body(&self) -> Value {
        // A path means something here, not in the node's own directory.
        let model = std::fs::canonicalize(&self.model).map_or_else(|_| self.model.clone(), |path| path.to_string_lossy().into_owned());
        json!({ "model": model, "split": self.split, "place": self.place, "context": self.context, "streams": self.streams })
    }
}

/// `NODE=FIRST..END`.
fn placed(text: &str) -> Result<PlaceRequest, String> {
    let parsed = || {
        let (node, layers) = text.rsplit_once('=')?;
        let (first, end) = layers.split_once("..")?;
        let layers = Layers::new(first.trim().parse().ok()?, end.trim().parse().ok()?);
        Some(PlaceRequest { node: node.trim().to_owned(), layers })
    };
    let place = parsed().ok_or_else(|| format!("`{text}` is no placement: write a node and its layers, for instance a=0..3"))?;
    if place.node.is_empty() || place.layers.count() == 0 {
        return Err(format!(
            "`{text}` places nothing: the first layer comes before the end, which is not included (0..3 is layers 0, 1 and 2)"
        ));
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_read_as_people_write_them() {
        let place = placed("node=1=0..3").expect("a placement");
        assert_eq!((place.node.as_str(), place.layers), ("node=1", Layers::new(0, 3)));
        for wrong in ["a", "a=", "a=3", "a=3..3", "a=4..3", "=0..3", "a=x..3", "a=-1..3", "a=0..70000"] {
            assert!(placed(wrong).is_err(), "{wrong}");
        }
    }
}
