//! A treatment applied to the rows of a comparison: the facts of the machine that belong to it, the
//! differences that it accounts for, and what nobody named in advance.

use kiln_core::{kinds::data::Loader, record::TrialRow};

use super::{
    Options, RowFact, TreatedKey, Unlike,
    comparable::unlike,
    matching::MatchedPair,
    names_setting,
    pair::{completed, unlike_in},
};

/// Facts that may be a treatment themselves. Others follow from settings: where those are equal, a
/// fact that differs is a fault.
const FACTS: [RowFact; 11] = [
    RowFact::DeviceName,
    RowFact::Processor,
    RowFact::PowerLimitWatts,
    RowFact::MigProfile,
    RowFact::EccMode,
    RowFact::HostId,
    RowFact::Driver,
    RowFact::Libtorch,
    RowFact::Engine,
    RowFact::CpuThreads,
    RowFact::ConcurrentTrials,
];

/// The treatment of a comparison; empty if none is looked for.
#[derive(Debug, Default)]
pub(super) struct AppliedTreatment {
    pub(super) keys: Vec<TreatedKey>,
    /// The keys for which rows would be refused, and that `--across` does not name.
    pub(super) unnamed: Vec<String>,
    facts: Vec<RowFact>,
    /// Facts that differ because a setting does.
    explained: Vec<RowFact>,
}

/// Settings that change how fast a trial is, though its id does not tell their values apart.
const OUTSIDE_IDS: [&str; 1] = [Loader::PIN_MEMORY];

impl AppliedTreatment {
    /// `is_by_treatment`: the trials of both sides have other ids, because of the settings.
    pub(super) fn of(pairs: &[MatchedPair<'_>], options: &Options, is_by_treatment: bool) -> Self {
        let Some(treatment) = &options.treatment else {
            return Self::default();
        };
        let explains = |field: &RowFact| field.settings().iter().any(|key| treatment.has(key));
        let explained: Vec<RowFact> = RowFact::ALL.into_iter().filter(explains).collect();
        let facts: Vec<Unlike> = uniform_facts(pairs)
            .into_iter()
            .filter(|unlike| FACTS.contains(&unlike.field) && !explained.contains(&unlike.field))
            .filter(|unlike| !options.across.contains(&unlike.field))
            .collect();
        // More than a few settings have no name of their own.
        let settings: &[TreatedKey] = match treatment.is_few() {
            true => &treatment.settings,
            false => &[],
        };
        // A setting that is not part of a trial's id refuses rows by the fact that follows from it.
        let differing: Vec<RowFact> = pairs
            .iter()
            .flat_map(unlike_in)
            .map(|unlike| unlike.field)
            .collect();
        let decides = |fields: &[RowFact], key: &str| {
            fields.iter().any(|field| field.settings().contains(&key))
        };
        let is_unnamed = |key: &&str| {
            (is_by_treatment || decides(&differing, key) || OUTSIDE_IDS.contains(key))
                && !decides(&options.across, key)
                && !options
                    .across_settings
                    .iter()
                    .any(|named| names_setting(named, key))
        };
        let fields = facts.iter().map(|unlike| unlike.field.name());
        let keys = settings.iter().map(|one| one.key.as_str());
        Self {
            unnamed: keys
                .filter(is_unnamed)
                .chain(fields)
                .map(str::to_owned)
                .collect(),
            keys: settings
                .iter()
                .cloned()
                .chain(facts.iter().map(key_of))
                .collect(),
            facts: facts.iter().map(|unlike| unlike.field).collect(),
            explained,
        }
    }

    /// Whether a field differs because of the treatment.
    pub(super) fn covers(&self, unlike: &Unlike) -> bool {
        self.facts.contains(&unlike.field)
            || (is_uniform(unlike) && self.explained.contains(&unlike.field))
    }
}

/// The facts in which all compared trials of base differ from all of new.
fn uniform_facts(pairs: &[MatchedPair<'_>]) -> Vec<Unlike> {
    let base = pairs.iter().flat_map(|pair| completed(&pair.base));
    let new = pairs.iter().flat_map(|pair| completed(&pair.new));
    let (base, new): (Vec<&TrialRow>, Vec<&TrialRow>) = (base.collect(), new.collect());
    let mut found = unlike(&base, &new);
    found.retain(is_uniform);
    found
}

fn is_uniform(unlike: &Unlike) -> bool {
    unlike.base.len() == 1 && unlike.new.len() == 1
}

/// A fact of the machine as a key of the treatment.
fn key_of(unlike: &Unlike) -> TreatedKey {
    let value = |values: &[String]| values.first().filter(|value| !value.is_empty()).cloned();
    TreatedKey {
        key: unlike.field.name().to_owned(),
        base: value(&unlike.base),
        new: value(&unlike.new),
    }
}
