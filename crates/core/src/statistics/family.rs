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

/// A question that is answered without an estimate, by the probability of the observed runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExactTest {
    pub p: f64,
    /// Its weight relative to the other questions; above 0.
    pub weight: f64,
}

impl ExactTest {
    /// The test where something holds for all runs of one side and for none of the other: among all
    /// ways to assign the runs to the sides, two are so extreme.
    pub fn of_all_against_none(base: usize, new: usize, weight: f64) -> Self {
        let ways: f64 = (1..=new)
            .map(|run| (base + run) as f64 / run as f64)
            .product();
        Self {
            p: (2.0 / ways).min(1.0),
            weight,
        }
    }
}

/// An estimate for each question, whose sides have at least [`super::FEWEST_RUNS`] runs each. The
/// intervals are adjusted by Holm's weighted procedure (1979): the chance of one false alarm among
/// all of them is at most [`ALPHA`].
pub fn estimates(questions: &[Question]) -> Vec<Estimate> {
    estimates_beside(questions, &[]).0
}

/// As [`estimates`], with exact tests in the same family; the second part says of each test whether
/// it shows a difference.
pub fn estimates_beside(questions: &[Question], tests: &[ExactTest]) -> (Vec<Estimate>, Vec<bool>) {
    let analyses: Vec<Analysis> = questions
        .iter()
        .map(|question| Analysis::of(&question.sides))
        .collect();
    let p = analyses.iter().map(Analysis::p);
    let p: Vec<f64> = p.chain(tests.iter().map(|test| test.p)).collect();
    let weights = questions.iter().map(Question::weight);
    let weights: Vec<f64> = weights
        .chain(tests.iter().map(|test| test.weight))
        .collect();
    let levels = levels(&p, &weights);
    let (of_questions, of_tests) = levels.split_at(questions.len());
    let estimates = analyses
        .iter()
        .zip(of_questions)
        .zip(questions)
        .map(|((analysis, level), question)| analysis.estimate(*level, question.worth));
    let differ = tests.iter().zip(of_tests);
    let differ = differ.map(|(test, level)| test.p <= *level);
    (estimates.collect(), differ.collect())
}

/// The level of each question, by Holm's steps; one whose probability is not above its level shows a
/// difference.
fn levels(p: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|one, other| (p[*one] / weights[*one]).total_cmp(&(p[*other] / weights[*other])));
    let mut rest: f64 = weights.iter().sum();
    let mut levels = vec![ALPHA; p.len()];
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
    levels
}
