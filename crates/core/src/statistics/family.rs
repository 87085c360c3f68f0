//! Several questions asked together: the chance of one false alarm among all of them stays at
//! [`ALPHA`].

use super::{ALPHA, Sides, analysis::Analysis, contrast::Estimate};

/// Two sides, with the relevant change and the question's share of the level.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub sides: Sides,
    /// The smallest relevant change, as a fraction.
    pub worth: f64,
    /// Its weight relative to the other questions; above 0.
    pub weight: f64,
}

impl Question {
    /// A number that is equal in all runs needs no test, and uses none of the level.
    fn weight(&self) -> f64 {
        if self.sides.is_constant() {
            NO_WEIGHT
        } else {
            self.weight
        }
    }
}

const NO_WEIGHT: f64 = 1e-12;

/// An estimate for each question, whose sides have at least [`super::FEWEST_RUNS`] runs each. The
/// intervals are adjusted by Holm's weighted procedure (1979): the chance of one false alarm among
/// all of them is at most [`ALPHA`].
pub fn estimates(questions: &[Question]) -> Vec<Estimate> {
    let analyses: Vec<Analysis> = questions
        .iter()
        .map(|question| Analysis::of(&question.sides))
        .collect();
    let p: Vec<f64> = analyses.iter().map(Analysis::p).collect();
    let weights: Vec<f64> = questions.iter().map(Question::weight).collect();
    let mut order: Vec<usize> = (0..questions.len()).collect();
    order.sort_by(|one, other| (p[*one] / weights[*one]).total_cmp(&(p[*other] / weights[*other])));
    let mut rest: f64 = weights.iter().sum();
    let mut levels = vec![ALPHA; questions.len()];
    let mut share = 0.0;
    let mut is_over = false;
    for place in order {
        // The first question without a significant difference ends the steps: the later questions
        // share the remaining level.
        if !is_over {
            share = ALPHA / rest;
            is_over = p[place] > share * weights[place];
            rest -= weights[place];
        }
        levels[place] = (share * weights[place]).min(ALPHA);
    }
    analyses
        .iter()
        .zip(levels)
        .zip(questions)
        .map(|((analysis, level), question)| analysis.estimate(level, question.worth))
        .collect()
}
