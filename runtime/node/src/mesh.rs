//! The library's face: join a mesh, deploy a model, ask it, leave.
//!
//! A [`Mesh`] is `Send + Sync + Clone` and works from any async runtime or plain thread. Behind it stand one OS thread
//! with an actix System of its own, the carrier's thread, and one engine thread for each shard. Nothing is global: two
//! meshes in one process do not know of each other. The library installs no signal handler, no log subscriber and no
//! thread pool.

mod forget;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_timer::Delay;
use mesh_actors::handle::{Found, Gone, Health, NodeHandle, NodeStatus, PlanPreview};
use mesh_core::generation::{GenerationRequest, Sampling, StreamError};
use mesh_core::ids::{DeploymentId, Digest, NodeId};
use mesh_core::model::HeldModel;
use mesh_core::ports::{ModelError, Models};
use mesh_core::records::{DeploymentRecord, DeploymentStatus, Wish};
use mesh_models::library::{GenerationDefaults, Library};
use mesh_models::text::{ChatRequest, Start, TextError, TextModel};

pub use forget::ForgetError;

use crate::answer::{Answer, GenerateOptions, Prompt};
use crate::settings::{Settings, SettingsError};
use crate::state::StateError;
use crate::thread::{self, NodeThread};

/// Streams of full context that a deployment reserves memory for, unless told otherwise.
pub const STREAMS_DEFAULT: u16 = 4;

/// No vocabulary spends fewer tokens than one for so many bytes (the longest are runs of blanks): a text that is longer
/// than the context even then is refused before it is encoded.
const TOKEN_BYTES_MAX: usize = 256;

/// Prompts up to this many bytes are encoded where they are: about a millisecond.
const LONG_PROMPT_BYTES: usize = 8 << 10;

/// Long prompts that are encoded at a time.
const ENCODERS: usize = 2;

/// How long a question waits for a deployment whose stages are connecting.
const STARTING_WAIT: Duration = Duration::from_secs(3);

/// Threads that wait for disks at a time; whoever comes later waits for one of them.
const DISK_WAITERS: usize = 8;

/// A tokenizer that is in use is held against its files again after so long.
const TEXT_LOOK: Duration = Duration::from_secs(5);

/// Digits of an id that name a node at least.
const ID_DIGITS_MIN: usize = 4;

/// How often something that changes by itself is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// A node of a mesh, running in this process.
#[derive(Clone)]
pub struct Mesh {
    inner: Arc<Inner>,
}

/// Texts in use, and when their files were last looked at. As many as were asked for in the last seconds.
type Texts = BTreeMap<Digest, ((Arc<TextModel>, GenerationDefaults), Instant)>;

struct Inner {
    handle: NodeHandle,
    library: Arc<Library>,
    me: NodeId,
    incarnation: u64,
    token: String,
    listen: Vec<String>,
    encoders: Arc<tokio::sync::Semaphore>,
    disk: Arc<tokio::sync::Semaphore>,
    texts: Mutex<Texts>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A node could not start.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A setting cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The invitation is not one.
    #[error("the token cannot be used: {0}; copy the whole line that `mesh token` prints")]
    Token(String),
    /// The network refused.
    #[error("{0}")]
    Net(String),
    /// Tensor channels cannot be set up.
    #[error("{0}")]
    Channels(String),
    /// The operating system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// A deployment was refused.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The model cannot be read here.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Nothing is deployed by this name.
    #[error("no model `{name}` is deployed; there are: {}", .have.join(", "))]
    Unknown {
        /// As asked.
        name: String,
        /// What is deployed.
        have: Vec<String>,
    },
    /// No node, or more than one, goes by a name.
    #[error("{0}")]
    Node(String),
    /// The node said no.
    #[error("{0}")]
    Refused(String),
    /// The node has stopped.
    #[error("the node has stopped")]
    Gone,
}

/// A question was refused.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// Nothing is deployed by this name.
    #[error("no model `{name}` is deployed; there are: {}", .have.join(", "))]
    UnknownModel {
        /// As asked.
        name: String,
        /// What is deployed.
        have: Vec<String>,
    },
    /// The prompt leaves no room for an answer (F102).
    #[error("the prompt has {prompt} tokens and the context is {context}: shorten it, or deploy with a longer --context")]
    TooLong {
        /// Tokens of the prompt.
        prompt: u32,
        /// Tokens of the context.
        context: u32,
    },
    /// The text alone is longer than any context of this length can hold.
    #[error(
        "the prompt of {bytes} bytes is far longer than the context of {context} tokens: shorten it, or deploy with a longer --context"
    )]
    TooLongText {
        /// Bytes of text.
        bytes: usize,
        /// Tokens of the context.
        context: u32,
    },
    /// The template or tokenizer refused the prompt (F96).
    #[error(transparent)]
    Prompt(#[from] TextError),
    /// An option makes no sense for this model.
    #[error("{name}: {why}")]
    Option {
        /// Which.
        name: &'static str,
        /// Why.
        why: String,
    },
    /// This node cannot read the model's tokenizer.
    #[error("this node cannot read the model's tokenizer: {0}")]
    Text(ModelError),
    /// The stream did not start.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// Too many commands wait.
    #[error("the node is busy: try again in a moment")]
    Busy,
    /// The node has stopped.
    #[error("the node has stopped")]
    Gone,
}

impl From<Gone> for GenerateError {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Busy => Self::Busy,
            Gone::Stopped => Self::Gone,
        }
    }
}

impl Mesh {
    /// Starts a node and joins the mesh of its settings; makes a new mesh if there is none yet.
    ///
    /// # Errors
    /// Before anything is taken: settings, state directory, token. Then: network, threads.
    pub async fn join(settings: Settings) -> Result<Self, JoinError> {
        // Starting waits for disks and threads, which an async caller must not.
        let (done, started) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("mesh-start".to_owned())
            .spawn(move || {
                let _ = done.send(thread::start(settings));
            })
            .map_err(JoinError::Thread)?;
        let started = started.await.map_err(|_| JoinError::Net("the node's thread ended while it started".to_owned()))??;
        Ok(Self::of(started))
    }

    fn of(started: NodeThread) -> Self {
        let NodeThread { handle, library, me, incarnation, token, listen, thread } = started;
        Self {
            inner: Arc::new(Inner {
                handle,
                library,
                me,
                incarnation,
                token,
                listen,
                encoders: Arc::new(tokio::sync::Semaphore::new(ENCODERS)),
                disk: Arc::new(tokio::sync::Semaphore::new(DISK_WAITERS)),
                texts: Mutex::default(),
                thread: Mutex::new(Some(thread)),
            }),
        }
    }

    /// The wish "as the planner thinks best".
    #[must_use]
    pub const fn any_split() -> Wish {
        Wish { split: None, context: None, streams: STREAMS_DEFAULT, place: Vec::new() }
    }

    /// This node.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.inner.me
    }

    /// Which of its lives.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.inner.incarnation
    }

    /// Where other nodes can dial this one.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.inner.listen
    }

    /// An invitation into this mesh: name, secret and this node's addresses. Whoever has it is a member.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.inner.token
    }

    /// What this node sees.
    ///
    /// # Errors
    /// The node has stopped.
    pub async fn status(&self) -> Result<NodeStatus, Gone> {
        self.inner.handle.status().await
    }

    /// Models in this node's directories and binary.
    pub async fn models(&self) -> Vec<HeldModel> {
        self.beside(|library| library.list()).await.unwrap_or_default()
    }

    /// What would be done with a model, and why. Changes nothing.
    ///
    /// # Errors
    /// The model cannot be read, or the node has stopped.
    pub async fn plan(&self, model: &str, wish: Wish) -> Result<PlanPreview, DeployError> {
        let name = model.to_owned();
        let sheet = self.beside(move |library| library.sheet(&name)).await.ok_or(DeployError::Gone)??;
        self.inner.handle.plan(sheet, wish).await.map_err(|_| DeployError::Gone)
    }

    /// Keeps a model answering: path, name in a model directory, or `builtin:story`. Returns the deployment's id and the
    /// name that requests use. It is loaded afterwards: see [`Mesh::ready`].
    ///
    /// # Errors
    /// The model cannot be read, the wish makes no sense, or the node has stopped.
    pub async fn deploy(&self, model: &str, wish: Wish) -> Result<(DeploymentId, String), DeployError> {
        let asked = model.to_owned();
        // A model that cannot be asked is refused here, not at the first question.
        let looked = self.beside(move |library| library.text(&asked).and_then(|_| library.sheet(&asked)));
        let sheet = looked.await.ok_or(DeployError::Gone)??;
        let name = sheet.name.clone();
        let id = self.inner.handle.deploy(sheet, wish).await.map_err(|_| DeployError::Gone)?.map_err(DeployError::Refused)?;
        Ok((id, name))
    }

    /// The node of this name, or whose id begins so.
    ///
    /// # Errors
    /// There is none, or more than one, or this node has stopped.
    pub async fn node_named(&self, name: &str) -> Result<NodeId, DeployError> {
        let status = self.status().await.map_err(|_| DeployError::Gone)?;
        let there = || status.nodes.iter().filter(|seen| seen.health != Health::Left);
        let mut found: Vec<NodeId> = there().filter(|seen| seen.record.name == name).map(|seen| seen.record.node).collect();
        if found.is_empty() && name.len() >= ID_DIGITS_MIN {
            found = there().map(|seen| seen.record.node).filter(|node| node.to_string().starts_with(name)).collect();
        }
        match found.as_slice() {
            [one] => Ok(*one),
            [] => {
                let names: Vec<&str> = there().map(|seen| seen.record.name.as_str()).collect();
                Err(DeployError::Node(format!("no node is called `{name}`; there are: {}", names.join(", "))))
            }
            several => {
                let ids: Vec<String> = several.iter().map(|node| node.short()).collect();
                Err(DeployError::Node(format!("several nodes are called `{name}`: name one by its id, of {}", ids.join(", "))))
            }
        }
    }

    /// Stops and forgets a deployment, by its model's name or its id.
    ///
    /// # Errors
    /// Nothing by this name, or the node has stopped.
    pub async fn undeploy(&self, name: &str) -> Result<(), DeployError> {
        let status = self.status().await.map_err(|_| DeployError::Gone)?;
        let found = status.deployments.iter().find(|seen| names(&seen.record, name));
        let id = found.ok_or_else(|| DeployError::Unknown { name: name.to_owned(), have: deployed(&status) })?.record.id;
        self.inner.handle.undeploy(id).await.map_err(|_| DeployError::Gone)?.map_err(DeployError::Refused)
    }

    /// Waits until a deployment is ready.
    ///
    /// # Errors
    /// It failed, is gone, or is not ready in time: in words.
    pub async fn ready(&self, id: DeploymentId, within: Duration) -> Result<(), String> {
        let deadline = Instant::now() + within;
        loop {
            let status = self.status().await.map_err(|gone| gone.to_string())?;
            let seen = status.deployments.iter().find(|seen| seen.record.id == id);
            let Some(seen) = seen else { return Err("the deployment is gone".to_owned()) };
            match &seen.record.status {
                DeploymentStatus::Ready => return Ok(()),
                DeploymentStatus::Failed { why } => return Err(why.clone()),
                other if Instant::now() >= deadline => {
                    return Err(format!("not ready after {} s: {}", within.as_secs(), status_in_words(other)));
                }
                _ => Delay::new(LOOK_EVERY).await,
            }
        }
    }

    /// Asks a deployed model. The answer is a stream of events; dropping it cancels.
    ///
    /// # Errors
    /// See [`GenerateError`]. Nothing was computed then.
    pub async fn generate(&self, model: &str, prompt: Prompt, options: GenerateOptions) -> Result<Answer, GenerateError> {
        let asked_at = Instant::now();
        let found = self.found_ready(model, asked_at).await?;
        let Some(context) = found.context else {
            return Err(StreamError::NotReady { why: status_in_words(&found.status) }.into());
        };
        let (text, defaults) = self.text_of(found.digest).await?;
        let start = if matches!(prompt, Prompt::Chat { .. }) { Start::Fresh } else { Start::Continuing };
        if prompt.bytes() / TOKEN_BYTES_MAX >= context as usize {
            return Err(GenerateError::TooLongText { bytes: prompt.bytes(), context });
        }
        let ids = self.ids_of(&text, prompt).await?;
        let request = request(found.vocabulary, context, ids, &options, &text, defaults)?;
        let (prompt_tokens, seed) = (u32::try_from(request.prompt.len()).unwrap_or(u32::MAX), request.sampling.seed);
        let generation = self.inner.handle.generate(found.id, request).await??;
        let pipeline = text.pipeline_from(start, options.stop);
        Ok(Answer::new(generation, text, pipeline, prompt_tokens, seed, asked_at))
    }

    /// A prompt's ids. Long prompts take time to render and encode: that happens on a thread of its own, two at a time, so
    /// that nobody else waits, and is not begun for a client that went away while it queued.
    async fn ids_of(&self, text: &Arc<TextModel>, prompt: Prompt) -> Result<Vec<u32>, GenerateError> {
        if prompt.bytes() <= LONG_PROMPT_BYTES {
            return Ok(encode(text, prompt)?);
        }
        let permit = Arc::clone(&self.inner.encoders).acquire_owned().await.map_err(|_| GenerateError::Gone)?;
        let (done, ids) = tokio::sync::oneshot::channel();
        let text = Arc::clone(text);
        let thread = std::thread::Builder::new().name("mesh-encode".to_owned()).spawn(move || {
            let _ = done.send(encode(&text, prompt));
            drop(permit);
        });
        thread.map_err(|_| GenerateError::Busy)?;
        Ok(ids.await.map_err(|_| GenerateError::Gone)??)
    }

    /// A ready deployment. One whose stages are connecting is waited for a moment: its first token is on its way, or the
    /// word of it is.
    async fn found_ready(&self, model: &str, asked_at: Instant) -> Result<Found, GenerateError> {
        loop {
            let found = self.inner.handle.find(model).await?;
            let found = found.map_err(|have| GenerateError::UnknownModel { name: model.to_owned(), have })?;
            match found.status {
                DeploymentStatus::Ready => return Ok(found),
                DeploymentStatus::Starting if asked_at.elapsed() < STARTING_WAIT => Delay::new(LOOK_EVERY).await,
                _ => return Err(StreamError::NotReady { why: status_in_words(&found.status) }.into()),
            }
        }
    }

    /// Tokenizer, template and defaults of a model. Files are looked at now and then, and not on the caller's thread: a disk
    /// may be slow.
    async fn text_of(&self, digest: Digest) -> Result<(Arc<TextModel>, GenerationDefaults), GenerateError> {
        let lately = |at: &Instant| at.elapsed() < TEXT_LOOK;
        if let Some((text, _)) = self.texts().get(&digest).filter(|(_, at)| lately(at)) {
            return Ok(text.clone());
        }
        let text = self.beside(move |library| library.text_of(digest)).await.ok_or(GenerateError::Gone)?;
        let text = text.map_err(GenerateError::Text)?;
        let mut texts = self.texts();
        texts.retain(|_, (_, at)| lately(at));
        texts.insert(digest, (text.clone(), Instant::now()));
        Ok(text)
    }

    fn texts(&self) -> MutexGuard<'_, Texts> {
        // Nothing panics with the lock held.
        self.inner.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something that waits for disks on a thread of its own. `None` if there is no thread to be had, or it broke off.
    async fn beside<T: Send + 'static>(&self, work: impl FnOnce(&Library) -> T + Send + 'static) -> Option<T> {
        let permit = Arc::clone(&self.inner.disk).acquire_owned().await.ok()?;
        let (done, outcome) = tokio::sync::oneshot::channel();
        let library = Arc::clone(&self.inner.library);
        let thread = std::thread::Builder::new().name("mesh-disk".to_owned()).spawn(move || {
            let _ = done.send(work(&library));
            drop(permit);
        });
        thread.ok()?;
        outcome.await.ok()
    }

    /// Ends this node's streams, tells the others, stops. Answers when all threads have ended.
    pub async fn leave(self) {
        self.inner.handle.leave().await;
        let thread = self.inner.thread.lock().ok().and_then(|mut thread| thread.take());
        let Some(thread) = thread else { return };
        let (done, ended) = tokio::sync::oneshot::channel();
        let joined = std::thread::Builder::new().name("mesh-stop".to_owned()).spawn(move || {
            let _ = done.send(thread.join());
        });
        if joined.is_ok() {
            let _ = ended.await;
        }
    }
}

/// What is asked of the stages: the client's options over the model's own defaults, checked.
fn request(
    vocabulary: u32,
    context: u32,
    ids: Vec<u32>,
    options: &GenerateOptions,
    text: &TextModel,
    defaults: GenerationDefaults,
) -> Result<GenerationRequest, GenerateError> {
    let no = |name, why: &str| Err(GenerateError::Option { name, why: why.to_owned() });
    if ids.is_empty() {
        return no("prompt", "the prompt is empty");
    }
    if ids.iter().any(|id| *id >= vocabulary) {
        return no("prompt", "a token id is outside the model's vocabulary");
    }
    if options.logit_bias.iter().any(|(id, _)| *id >= vocabulary) {
        return no("logit_bias", "a token id is outside the model's vocabulary");
    }
    let prompt = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if prompt >= context {
        return Err(GenerateError::TooLong { prompt, context });
    }
    let sampling = Sampling {
        temperature: options.temperature.unwrap_or(defaults.temperature),
        top_k: options.top_k.unwrap_or(defaults.top_k),
        top_p: options.top_p.unwrap_or(defaults.top_p),
        min_p: options.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: options.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty: options.presence_penalty.unwrap_or(0.0),
        frequency_penalty: options.frequency_penalty.unwrap_or(0.0),
        logit_bias: options.logit_bias.clone(),
        seed: options.seed.unwrap_or_else(rand::random),
        logprobs: options.logprobs,
    };
    let room = context - prompt;
    let max_tokens = options.max_tokens.unwrap_or(room).min(room);
    Ok(GenerationRequest { prompt: ids, sampling, end_ids: text.end_ids().to_vec(), max_tokens })
}

/// Renders and encodes.
fn encode(text: &TextModel, prompt: Prompt) -> Result<Vec<u32>, TextError> {
    match prompt {
        Prompt::Text(prompt) => text.encode(&prompt, true),
        Prompt::Chat { messages, tools, extra } => text.encode_chat(&ChatRequest { messages, tools, add_generation_prompt: true, extra }),
        Prompt::Ids(ids) => Ok(ids),
    }
}

/// Whether a request's `model` means this deployment.
fn names(record: &DeploymentRecord, name: &str) -> bool {
    record.sheet.name == name || record.id.to_string() == name
}

fn deployed(status: &NodeStatus) -> Vec<String> {
    status.deployments.iter().map(|seen| seen.record.sheet.name.clone()).collect()
}

/// A status as a sentence.
#[must_use]
pub fn status_in_words(status: &DeploymentStatus) -> String {
    match status {
        DeploymentStatus::Planning => "it is being placed".to_owned(),
        DeploymentStatus::Loading { .. } => "its layers are being loaded".to_owned(),
        DeploymentStatus::Starting => "its stages are connecting".to_owned(),
        DeploymentStatus::Ready => "it is ready".to_owned(),
        DeploymentStatus::Waiting { why, .. } => format!("it waits for nodes or memory: {why}"),
        DeploymentStatus::Failed { why } => format!("it failed: {why}"),
    }
}
