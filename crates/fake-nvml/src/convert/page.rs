//! A printed page as a tree of labels: the output of the readers and the input of the inverter.

/// One label, perhaps with a cell behind it, and what is indented below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub label: String,
    pub cell: Option<String>,
    pub children: Vec<Node>,
}

/// The head and one block per GPU, whose label is its bus id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub head: Vec<Node>,
    pub gpus: Vec<Node>,
}

impl Node {
    #[must_use]
    pub fn new(label: &str, cell: Option<String>) -> Self {
        Self {
            label: label.to_owned(),
            cell,
            children: Vec::new(),
        }
    }

    /// The first node at a path of labels with ` > ` between them.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Node> {
        path.split(" > ").try_fold(self, |node, label| {
            node.children.iter().find(|child| child.label == label)
        })
    }

    /// The cell at a path.
    #[must_use]
    pub fn cell_at(&self, path: &str) -> Option<&str> {
        self.at(path)?.cell.as_deref()
    }

    /// Puts a cell at a path, making what is missing on the way. Where there is one already it is
    /// replaced only if `over`.
    pub fn put(&mut self, path: &str, cell: &str, over: bool) {
        let node = path.split(" > ").fold(self, |node, label| {
            let found = node.children.iter().position(|child| child.label == label);
            let index = found.unwrap_or_else(|| {
                node.children.push(Node::new(label, None));
                node.children.len() - 1
            });
            &mut node.children[index]
        });
        if over || (node.cell.is_none() && node.children.is_empty()) {
            node.cell = Some(cell.to_owned());
        }
    }

    /// All nodes with cells below this one, in order, with their paths.
    #[must_use]
    pub fn cells(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        self.collect("", &mut found);
        found
    }

    fn collect(&self, above: &str, into: &mut Vec<(String, String)>) {
        for child in &self.children {
            let path = if above.is_empty() {
                child.label.clone()
            } else {
                format!("{above} > {}", child.label)
            };
            if let Some(cell) = &child.cell {
                into.push((path.clone(), cell.clone()));
            }
            child.collect(&path, into);
        }
    }
}

impl Page {
    /// The head's cell of this label.
    #[must_use]
    pub fn head_cell(&self, label: &str) -> Option<&str> {
        self.head
            .iter()
            .find(|node| node.label == label)?
            .cell
            .as_deref()
    }

    /// The driver's version, without the additions of newer pages.
    #[must_use]
    pub fn driver(&self) -> &str {
        let cell = self
            .head_cell("KMD Version")
            .or(self.head_cell("Driver Version"))
            .unwrap_or_default();
        cell.split_whitespace().next().unwrap_or_default()
    }

    /// The driver's branch, such as 590; 0 if the page does not have it.
    #[must_use]
    pub fn branch(&self) -> u32 {
        self.driver()
            .split('.')
            .next()
            .and_then(|branch| branch.parse().ok())
            .unwrap_or(0)
    }
}
