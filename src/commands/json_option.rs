//! `--json` and `--format json`: a command that has one of them takes the other too.

/// `--json` of a command that has `--format`.
#[derive(clap::Args)]
pub(super) struct JsonFlag {
    /// The same as `--format json`.
    #[arg(long, hide = true, conflicts_with = "format")]
    json: bool,
}

impl JsonFlag {
    /// The format, or `json` if the flag is given.
    pub(super) fn or<F>(&self, format: F, json: F) -> F {
        if self.json { json } else { format }
    }
}

/// `--format` of a command that has `--json`.
#[derive(clap::Args)]
pub(super) struct JsonFormat {
    /// `--format json` is the same as `--json`.
    #[arg(long, value_enum, hide = true, conflicts_with = "json")]
    format: Option<PageFormat>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PageFormat {
    /// For a terminal.
    Text,
    /// For programs.
    Json,
}

impl JsonFormat {
    pub(super) fn is_json(&self) -> bool {
        self.format == Some(PageFormat::Json)
    }
}
