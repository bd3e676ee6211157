//! `mesh models`, `mesh plan`, `mesh token`: look, change nothing.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use mesh_net::MeshSecret;
use mesh_runtime::state::StateDir;
use serde_json::Value;

use super::wish::WishFlags;
use super::{Target, human, out};
use mesh_runtime::client::text;

/// Flags of `mesh models`.
#[derive(Debug, Args)]
pub struct Models {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    target: Target,
}

impl Models {
    /// Runs the command.
    ///
    /// # Errors
    /// No node answers.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let models = self.target.client()?.get("/mesh/v1/models")?;
        if self.json {
            out::json(&models)?;
            return Ok(ExitCode::SUCCESS);
        }
        out::line(format_args!("{:<50}{:<12}DIGEST", "MODEL", "LAYERS"))?;
        for model in models.as_array().into_iter().flatten() {
            let layers = format!("{}..{}", model["layers"]["first"], model["layers"]["end"]);
            let digest = text(&model["digest"]);
            out::line(format_args!("{:<50}{layers:<12}{}", text(&model["name"]), digest.get(..16).unwrap_or_default()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Flags of `mesh plan`.
#[derive(Debug, Args)]
pub struct Plan {
    #[command(flatten)]
    wish: WishFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    target: Target,
}

impl Plan {
    /// Runs the command. Exit status 2 = no plan fits.
    ///
    /// # Errors
    /// No node answers, or the model cannot be read.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let preview = self.target.client()?.post("/mesh/v1/plan", &self.wish.body())?;
        let fits = preview["outcome"]["Ok"].is_object();
        if self.json {
            out::json(&preview)?;
        } else {
            out::part(preview_text(&preview))?;
        }
        Ok(if fits { ExitCode::SUCCESS } else { ExitCode::from(2) })
    }
}

fn preview_text(preview: &Value) -> String {
    let name = |id: &Value| -> String {
        let names = preview["names"].as_array().into_iter().flatten();
        names.filter(|pair| pair[0] == *id).map(|pair| text(&pair[1])).next().unwrap_or_else(|| text(id))
    };
    let mut out = String::new();
    let outcome = &preview["outcome"];
    let planned = &outcome["Ok"];
    for (index, stage) in planned["plan"]["stages"].as_array().into_iter().flatten().enumerate() {
        let memory = &planned["memory"][index];
        let (need, have) = (memory[0].as_u64().unwrap_or(0), memory[1].as_u64().unwrap_or(0));
        let layers = format!("{}..{}", stage["layers"]["first"], stage["layers"]["end"]);
        out += &format!("stage {index}  layers {layers:<10} on {:<20} {} of {}\n", name(&stage["node"]), human(need), human(have));
    }
    if planned.is_object() {
        let rate = |field: &str| planned[field].as_f64().unwrap_or(0.0);
        out += &format!(
            "context {} tokens; predicted {:.0} prompt tokens/s, {:.1} tokens/s\n",
            planned["plan"]["context"],
            rate("prefill_tokens_per_s"),
            rate("decode_tokens_per_s")
        );
        for reason in planned["reasons"].as_array().into_iter().flatten() {
            out += &format!("because: {}\n", text(reason));
        }
    } else {
        out += &format!("no plan: {}\n", text(&outcome["Err"]["why"]));
    }
    let left_out = if planned.is_object() { &planned["left_out"] } else { &outcome["Err"]["left_out"] };
    for pair in left_out.as_array().into_iter().flatten() {
        out += &format!("left out: {}: {}\n", name(&pair[0]), text(&pair[1]));
    }
    out
}

/// Flags of `mesh token`.
#[derive(Debug, Args)]
pub struct Token {
    /// Make a mesh on this state directory if it has none yet
    #[arg(long)]
    new: bool,
    /// Name of a new mesh
    #[arg(long, value_name = "NAME", default_value = "home")]
    mesh: String,
    #[command(flatten)]
    target: Target,
}

impl Token {
    /// Runs the command.
    ///
    /// # Errors
    /// There is no mesh on the state directory.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.target.api.is_none(),
            "a secret is never sent over HTTP: run `mesh token` on the node's own machine, with its --state-dir and without --api or MESH_API"
        );
        let dir = self.target.state_dir();
        let mut identity = StateDir::peek(&dir).identity()?;
        if identity.is_none() && self.new {
            let made = mesh_runtime::state::MeshIdentity { name: self.mesh.clone(), secret: MeshSecret::draw().to_hex() };
            StateDir::open(&dir)?.adopt(&made)?;
            identity = Some(made);
        }
        let identity = identity.with_context(|| {
            format!(
                "there is no mesh on {} yet: run `mesh join` there, or `mesh token --new`, or name another with --state-dir",
                dir.display()
            )
        })?;
        let secret = MeshSecret::from_hex(&identity.secret).with_context(|| format!("{} is damaged", dir.join("mesh.json").display()))?;
        // Without addresses the invited find it by multicast DNS or `--peer`.
        let addresses = self.target.client().map(|client| client.own_addresses()).unwrap_or_default();
        out::line(mesh_net::Token { mesh: identity.name, secret, addresses })?;
        Ok(ExitCode::SUCCESS)
    }
}
