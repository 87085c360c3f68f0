//! The one table of a GPU's fields. A row joins three names of one reading: its label in
//! `nvidia-smi -q`, its section and name in the tidy tables, its property in
//! `nvidia-smi --query-gpu`; and how to take it from a [`Gpu`]. The views (`text`, `query`,
//! `snapshot`) are formatters over these rows, so that all of them have the same fields.

pub mod cell;
mod clocks;

mod health;
mod identity;
mod pci;
mod power;
mod temperature;
mod work;

use super::Gpu;
use cell::TypedReading;

/// Joins the parts of a label: `PCI > Bus`.
pub const WITHIN: &str = " > ";

/// One field. An empty name means that the view does not have it.
pub struct FieldRow {
    /// Headings and label of `nvidia-smi -q`, R590.
    pub label: &'static str,
    /// `section.field`.
    pub tidy: &'static str,
    pub property: &'static str,
    /// Other names that nvidia-smi takes for the property.
    pub aliases: &'static [&'static str],
    /// Meaning of the property.
    pub meaning: &'static str,
    pub cell: fn(&Gpu) -> TypedReading,
    /// Whether the text of this GPU has the label: some depend on the board.
    pub is_shown: fn(&Gpu) -> bool,
    /// Names one particular board.
    pub is_identifying: bool,
    /// nvidia-smi omits the brackets around this property's N/A.
    pub is_bare: bool,
    /// A part of the text that is repeated: a GPU's MIG devices, its processes.
    pub block: Option<TextBlock>,
}

/// Repeated parts of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextBlock {
    MigDevices,
    Processes,
}

const fn row(
    label: &'static str,
    tidy: &'static str,
    property: &'static str,
    cell: fn(&Gpu) -> TypedReading,
) -> FieldRow {
    FieldRow {
        label,
        tidy,
        property,
        aliases: &[],
        meaning: "",
        cell,
        is_shown: |_| true,
        is_identifying: false,
        is_bare: false,
        block: None,
    }
}

/// A row of the text alone.
const fn label(label: &'static str, cell: fn(&Gpu) -> TypedReading) -> FieldRow {
    row(label, "", "", cell)
}

/// A row of the tidy tables alone.
const fn tidy(tidy: &'static str, cell: fn(&Gpu) -> TypedReading) -> FieldRow {
    row("", tidy, "", cell)
}

const fn block(block: TextBlock) -> FieldRow {
    let mut row = row("", "", "", |_| cell::no_call(cell::ValueKind::Plain));
    row.block = Some(block);
    row
}

impl FieldRow {
    const fn means(mut self, meaning: &'static str) -> Self {
        self.meaning = meaning;
        self
    }

    const fn or(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn when(mut self, is_shown: fn(&Gpu) -> bool) -> Self {
        self.is_shown = is_shown;
        self
    }

    const fn identifying(mut self) -> Self {
        self.is_identifying = true;
        self
    }

    const fn bare(mut self) -> Self {
        self.is_bare = true;
        self
    }
}

/// All rows, in the order of `nvidia-smi -q`.
pub fn rows() -> impl Iterator<Item = &'static FieldRow> {
    [
        identity::TABLES,
        pci::TABLES,
        work::TABLES,
        health::TABLES,
        temperature::TABLES,
        power::TABLES,
        clocks::TABLES,
    ]
    .into_iter()
    .flatten()
    .copied()
    .flatten()
}

/// The row of a property, by its name or another that nvidia-smi takes.
pub fn property(name: &str) -> Option<&'static FieldRow> {
    rows().find(|row| {
        !row.property.is_empty() && (row.property == name || row.aliases.contains(&name))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// These, and no other field, are beyond public NVML; the map between branches has them, too.
    #[test]
    fn fields_without_a_call_are_those_of_the_map() {
        let nobody = Gpu::unread(&crate::Absence::Lost);
        let is_without = |row: &&FieldRow| {
            row.block.is_none()
                && (row.cell)(&nobody).value.absence() == Some(&crate::Absence::NoCall)
        };
        let found: Vec<&str> = rows().filter(is_without).map(|row| row.label).collect();
        let map = include_str!("../../../../docs/nvidia-smi-labels.csv");
        let listed: Vec<&str> = map
            .lines()
            .filter_map(|line| line.strip_prefix(",,no_call,"))
            .filter_map(|rest| rest.split(',').next())
            .collect();
        assert_eq!(
            found.iter().collect::<HashSet<_>>(),
            listed.iter().collect::<HashSet<_>>()
        );
        assert!(found.len() <= 15, "{found:?}");
    }

    #[test]
    fn names_are_given_once_and_every_property_is_explained() {
        let (mut tidy, mut properties) = (HashSet::new(), HashSet::new());
        for row in rows() {
            assert!(
                row.tidy.is_empty() || tidy.insert(row.tidy),
                "{} twice",
                row.tidy
            );
            assert!(
                row.tidy.is_empty() || row.tidy.split('.').count() == 2,
                "{} is no section and field",
                row.tidy
            );
            for name in std::iter::once(&row.property)
                .chain(row.aliases)
                .filter(|name| !name.is_empty())
            {
                assert!(properties.insert(*name), "{name} twice");
            }
            assert_eq!(
                row.property.is_empty(),
                row.meaning.is_empty(),
                "{} {}",
                row.property,
                row.label
            );
        }
        assert!(properties.len() > 241, "{}", properties.len());
    }
}
