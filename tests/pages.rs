//! The pages of the documentation: their fenced blocks, files and commands.
//!
//! A block's first word is its language; words after it are for the tests (`gpu`, `varies`). A block
//! whose first or second line is `# NAME` holds the file NAME.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A fenced block of a page.
pub(crate) struct Block {
    pub(crate) language: String,
    /// Words after the language.
    pub(crate) marks: Vec<String>,
    /// Of its first fence.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// A command of a block, and the lines that the page shows below it.
pub(crate) struct ShownCommand {
    pub(crate) typed: String,
    pub(crate) shown: Vec<String>,
}

impl Block {
    fn opened(fence: &str, line: usize) -> Self {
        let mut words = fence.split_whitespace().map(str::to_owned);
        Self {
            language: words.next().unwrap_or_default(),
            marks: words.collect(),
            line,
            text: String::new(),
        }
    }

    pub(crate) fn is_marked(&self, mark: &str) -> bool {
        self.marks.iter().any(|word| word == mark)
    }

    /// The name of the file that the block holds.
    pub(crate) fn file(&self) -> Option<&str> {
        let mut lines = self.text.lines();
        let first = lines.next()?;
        let name = match first.starts_with("#!") {
            true => lines.next()?,
            false => first,
        }
        .strip_prefix("# ")?;
        let is_name = name.ends_with(".yaml") || name.ends_with(".sh");
        (is_name && !name.contains(' ')).then_some(name)
    }

    /// The commands of a block of `sh`, or behind `$` in one of `console`. A backslash at the end of a
    /// line continues it.
    pub(crate) fn commands(&self) -> Vec<ShownCommand> {
        let is_console = match self.language.as_str() {
            "sh" => false,
            "console" => true,
            _ => return Vec::new(),
        };
        let mut commands: Vec<ShownCommand> = Vec::new();
        let mut is_continued = false;
        for line in self.text.lines() {
            let typed = match line.strip_prefix("$ ") {
                Some(typed) => Some(typed),
                None => (is_continued || !is_console).then_some(line),
            };
            match (typed, commands.last_mut()) {
                (Some(typed), Some(last)) if is_continued => {
                    last.typed.push('\n');
                    last.typed.push_str(typed);
                }
                (Some(typed), _) => commands.push(ShownCommand {
                    typed: typed.to_owned(),
                    shown: Vec::new(),
                }),
                (None, Some(last)) => last.shown.push(line.to_owned()),
                (None, None) => {}
            }
            is_continued = typed.is_some_and(|typed| typed.ends_with('\\'));
        }
        commands
    }
}

/// The fenced blocks of a page.
pub(crate) fn blocks(page: &Path) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (line, text) in (1..).zip(fs::read_to_string(page).unwrap().lines()) {
        match text.strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(fence) => {
                is_open = true;
                blocks.push(Block::opened(fence, line));
            }
            None => {
                if let Some(block) = blocks.last_mut().filter(|_| is_open) {
                    block.text.push_str(text);
                    block.text.push('\n');
                }
            }
        }
    }
    blocks
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Markdown files of a folder, by name.
pub(crate) fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder).unwrap();
    let mut pages: Vec<PathBuf> = listed
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.sort();
    pages
}

/// The pages in `docs/` and `docs/guide/`, and the READMEs.
pub(crate) fn pages() -> Vec<PathBuf> {
    let docs = root().join("docs");
    let readmes = ["README.md", "README.zh-CN.md"].map(|name| root().join(name));
    [
        pages_in(&docs),
        pages_in(&docs.join("guide")),
        readmes.into(),
    ]
    .concat()
}
