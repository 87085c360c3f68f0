//! `nvidia-smi --query-gpu`: chosen properties of each GPU as CSV, with nvidia-smi's names, units
//! and tokens.

use std::sync::LazyLock;

use kiln_units::without_controls;

use super::{
    Absence, Gpu,
    fields::{FieldRow, property, rows},
};

/// A query: properties in the requested order, and their format.
pub struct Query {
    columns: Vec<QueryColumn>,
    format: QueryFormat,
}

/// nvidia-smi's `--format=csv,noheader,nounits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryFormat {
    pub has_header: bool,
    pub has_units: bool,
}

enum QueryColumn {
    Row(&'static FieldRow),
    /// The time of the reading, which does not belong to a GPU.
    Timestamp,
}

/// The one property that is not of a GPU.
const TIMESTAMP: &str = "timestamp";

/// The reason why a query is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum QueryError {
    /// Each with the nearest known name, if one is near.
    UnknownProperties(Vec<(String, Option<&'static str>)>),
    NoProperty,
    UnknownFormat(String),
}

impl std::fmt::Display for QueryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownProperties(names) => {
                let meant = |nearest: Option<&str>| {
                    nearest
                        .map(|nearest| format!(" (did you mean `{nearest}`?)"))
                        .unwrap_or_default()
                };
                let each: Vec<String> = names
                    .iter()
                    .map(|(name, nearest)| format!("unknown property `{name}`{}", meant(*nearest)))
                    .collect();
                write!(
                    f,
                    "`--query`: {}; `kiln snapshot --list` lists them all",
                    each.join(", ")
                )
            }
            Self::NoProperty => write!(
                f,
                "`--query` is empty; try `--query name,memory.used,utilization.gpu`"
            ),
            Self::UnknownFormat(word) => write!(
                f,
                "`--format`: unknown word `{word}`; `csv`, `noheader` and `nounits` are allowed"
            ),
        }
    }
}

impl std::error::Error for QueryError {}

impl QueryFormat {
    /// Reads `csv,noheader,nounits`, in any order.
    ///
    /// # Errors
    /// On another word.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let mut format = Self {
            has_header: true,
            has_units: true,
        };
        for word in text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            match word {
                "csv" => {}
                "noheader" => format.has_header = false,
                "nounits" => format.has_units = false,
                other => return Err(QueryError::UnknownFormat(other.to_owned())),
            }
        }
        Ok(format)
    }
}

impl Query {
    /// Reads a comma list of properties.
    ///
    /// # Errors
    /// The list is empty, or names are not properties; all of them are reported at once.
    pub fn parse(properties: &str, format: QueryFormat) -> Result<Self, QueryError> {
        let names = properties
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let (mut columns, mut unknown) = (Vec::new(), Vec::new());
        for name in names {
            match column(name) {
                Some(column) => columns.push(column),
                None => unknown.push((name.to_owned(), nearest(name))),
            }
        }
        match (columns.is_empty(), unknown.is_empty()) {
            (_, false) => Err(QueryError::UnknownProperties(unknown)),
            (true, true) => Err(QueryError::NoProperty),
            (false, true) => Ok(Self { columns, format }),
        }
    }

    /// The header, if requested, and a line per GPU.
    pub fn answer(&self, gpus: &[Gpu], moment: &jiff::Zoned) -> String {
        let mut lines = Vec::new();
        if self.format.has_header {
            lines.push(
                self.columns
                    .iter()
                    .map(|column| self.header(column))
                    .collect::<Vec<_>>(),
            );
        }
        lines.extend(gpus.iter().map(|gpu| {
            self.columns
                .iter()
                .map(|column| self.cell(column, gpu, moment))
                .collect()
        }));
        lines.iter().map(|cells| cells.join(", ") + "\n").collect()
    }

    fn header(&self, column: &QueryColumn) -> String {
        let QueryColumn::Row(row) = column else {
            return TIMESTAMP.to_owned();
        };
        match unit_of(row) {
            "" => row.property.to_owned(),
            // nvidia-smi names the unit in the header even where it leaves it out of the cells.
            unit => format!("{} [{unit}]", row.property),
        }
    }

    fn cell(&self, column: &QueryColumn, gpu: &Gpu, moment: &jiff::Zoned) -> String {
        match column {
            QueryColumn::Timestamp => moment.strftime("%Y/%m/%d %H:%M:%S%.3f").to_string(),
            // A comma would be a column's end; nvidia-smi writes a question mark too.
            QueryColumn::Row(row) => {
                let text = (row.cell)(gpu).query(self.format.has_units, row.is_bare);
                without_controls(&text).replace(',', "?")
            }
        }
    }
}

/// `None` for a name that is not a property.
fn column(name: &str) -> Option<QueryColumn> {
    if name == TIMESTAMP {
        Some(QueryColumn::Timestamp)
    } else {
        property(name).map(QueryColumn::Row)
    }
}

/// The known name nearest to this one, if it is near enough to be a slip.
fn nearest(name: &str) -> Option<&'static str> {
    let far = (name.chars().count() / 3).max(1);
    let names = rows()
        .flat_map(|row| std::iter::once(&row.property).chain(row.aliases))
        .copied()
        .chain([TIMESTAMP]);
    let distance =
        |candidate: &str| strsim::osa_distance(&name.to_lowercase(), &candidate.to_lowercase());
    let candidates = names
        .filter(|candidate| !candidate.is_empty())
        .map(|candidate| (distance(candidate), candidate));
    candidates
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The unit of a property's header.
fn unit_of(row: &FieldRow) -> &'static str {
    static NO_GPU: LazyLock<Gpu> = LazyLock::new(|| Gpu::unread(&Absence::NotSupported));
    (row.cell)(&NO_GPU).query_unit()
}

/// All properties: name, unit, meaning.
pub fn properties() -> Vec<(&'static str, &'static str, &'static str)> {
    let rows = rows()
        .filter(|row| !row.property.is_empty())
        .map(|row| (row.property, unit_of(row), row.meaning));
    std::iter::once((TIMESTAMP, "", "local time of the reading"))
        .chain(rows)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(properties: &str, format: &str) -> String {
        let moment: jiff::Zoned = "2026-07-03T22:11:09.7634[UTC]".parse().unwrap();
        let query = Query::parse(properties, QueryFormat::parse(format).unwrap()).unwrap();
        query.answer(&[Gpu::unread(&Absence::Lost)], &moment)
    }

    #[test]
    fn header_units_and_tokens_are_nvidia_smis() {
        let wanted = "timestamp, memory.used [MiB], temperature.gpu, fabric.state\n\
                      2026/07/03 22:11:09.763, [GPU is lost], [GPU is lost], N/A\n";
        assert_eq!(
            ask("timestamp,memory.used,temperature.gpu,fabric.state", "csv"),
            wanted
        );
        assert_eq!(
            ask("clocks.sm, gpu_name", "csv,noheader,nounits"),
            "[GPU is lost], [GPU is lost]\n"
        );
    }

    #[test]
    fn an_alias_prints_the_property_it_stands_for() {
        assert!(ask("clocks.gr", "csv").starts_with("clocks.current.graphics [MHz]\n"));
    }

    #[test]
    fn a_slip_finds_its_property_and_a_stranger_none() {
        let slips = Query::parse(
            "utilisation.gpu,name,xyzzy",
            QueryFormat {
                has_header: true,
                has_units: true,
            },
        )
        .err()
        .unwrap();
        let wanted = "`--query`: unknown property `utilisation.gpu` (did you mean \
                      `utilization.gpu`?), unknown property `xyzzy`; `kiln snapshot --list` lists \
                      them all";
        assert_eq!(slips.to_string(), wanted);
        let stranger = Query::parse(
            "loss",
            QueryFormat {
                has_header: true,
                has_units: true,
            },
        )
        .err()
        .unwrap();
        assert!(!stranger.to_string().contains("did you mean"), "{stranger}");
        assert_eq!(
            QueryFormat::parse("csv,nohead"),
            Err(QueryError::UnknownFormat("nohead".into()))
        );
        assert_eq!(
            Query::parse(
                " , ",
                QueryFormat {
                    has_header: true,
                    has_units: true
                }
            )
            .err(),
            Some(QueryError::NoProperty)
        );
    }
}
