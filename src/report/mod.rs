//! Reports: tables become a summary for people. All numbers come from tables.

mod baselines;
mod batch_choice;
mod chart;
pub mod compare;
mod diff;
mod energy;
mod findings;
mod html;
mod layout;
mod manual;
mod metrics;
mod not_completed;
mod objective;
mod page;
mod point_table;
mod points;
mod programs;
mod ranked_table;
mod ranking;
mod rates;
mod recommendation;
mod run_settings;
mod steps_and_samples;
mod subject;
mod two_values;
mod views;

pub mod diagnosis;
pub mod notices;
pub mod summary;

pub use diagnosis::diagnose;
pub use diff::RunDiff;
pub use html::Album;
pub use layout::PageStyle;
pub use manual::manual;
pub use notices::notices;
pub use objective::{UntilTarget, goal_of_search, objective_not_searched};
pub use page::{json, markdown, text};
pub use point_table::{point_table, point_table_manual};
pub(crate) use points::{has_repeats, short_names_beside, trial_in_words};
pub use programs::packages_file;
pub use ranking::{BestValue, RankedTrial, best_value, ranked_trials};
pub use recommendation::SearchScope;
pub use run_settings::complete_experiment;
pub use subject::Subject;
pub use summary::{summary, summary_in, summary_of_run};
