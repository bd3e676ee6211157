//! `mesh`: one large language model over many machines, answering while they leave, crash and reboot.
//!
//! Join a mesh, deploy a model, ask it:
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use futures::StreamExt;
//! use mesh_runtime::{AnswerEvent, GenerateOptions, Mesh, Prompt, Settings};
//!
//! let mesh = Mesh::join(Settings::default()).await?;
//! let (id, model) = mesh.deploy("builtin:story", Mesh::any_split()).await?;
//! mesh.ready(id, std::time::Duration::from_secs(60)).await?;
//! let mut answer = mesh.generate(&model, Prompt::user("Tell me a story."), GenerateOptions::default()).await?;
//! while let Some(event) = answer.next().await {
//!     if let AnswerEvent::Text { text, .. } = event? {
//!         print!("{text}");
//!     }
//! }
//! mesh.leave().await;
//! # Ok(()) }
//! ```
//!
//! What this room must *not* know: how a protocol, a kernel or a frame works. It wires the rooms together.

pub mod answer;
pub mod api;
pub mod capacity;
pub mod client;
pub mod mesh;
pub mod processes;
pub mod settings;
pub mod state;
mod thread;

pub use answer::{Answer, AnswerEvent, EndReason, GenerateOptions, Prompt, TokenPiece, Usage};
pub use mesh::{DeployError, GenerateError, JoinError, Mesh};
pub use mesh_actors::handle::{Health, NodeStatus, SeenDeployment, SeenNode};
pub use mesh_core::model::Layers;
pub use mesh_core::plan::Stage;
pub use mesh_core::records::{DeploymentStatus, Wish};
pub use settings::{Api, Settings};
