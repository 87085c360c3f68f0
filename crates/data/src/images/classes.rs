//! Remarks on the classes of a folder of images.

use kiln_core::{
    kinds::data::Data,
    units::{Fraction, few},
};

use super::{LoadedImages, describe};

/// Most classes that are named; the others are counted.
const MOST_NAMED: usize = 5;
/// A class with more images than this many times the mean of the others is large.
const LARGE: f64 = 3.0;

/// How many training images, and how many validation images, each class has, in the order of the
/// labels.
pub fn class_counts(found: &LoadedImages) -> [Vec<u64>; 2] {
    [&found.train, &found.valid].map(|part| {
        let mut counts = vec![0_u64; found.shape.classes as usize];
        for label in &part.labels {
            counts[*label as usize] += 1;
        }
        counts
    })
}

/// A line on a folder in which one class is large, or a class has no validation image; `None` for
/// others.
pub fn about_classes(data: &Data, found: &LoadedImages) -> Option<String> {
    let Data::ImageFolder(_) = data else {
        return None;
    };
    let counts = ClassCounts::of(found);
    let (least, most) = (*counts.all.iter().min()?, *counts.all.iter().max()?);
    let (large, absent) = (counts.large(), counts.not_validated());
    if large.is_none() && absent.is_empty() {
        return None;
    }
    let names = describe(data).ok().and_then(|described| described.classes);
    let names = names.unwrap_or_default();
    let name = |class: usize| {
        let name = names.get(class).cloned();
        name.unwrap_or_else(|| class.to_string())
    };
    let mut line = format!(
        "images: {} classes, {least} to {most} images each",
        counts.all.len()
    );
    if let Some(class) = large {
        line += &counts.about_large(class, &name(class));
    }
    if !absent.is_empty() {
        line += &about_not_validated(&absent.into_iter().map(name).collect::<Vec<_>>());
    }
    Some(line)
}

/// Numbers of images, by class.
struct ClassCounts {
    /// Training and validation together.
    all: Vec<u64>,
    valid: Vec<u64>,
}

impl ClassCounts {
    fn of(found: &LoadedImages) -> Self {
        let [train, valid] = class_counts(found);
        let both = train.iter().zip(&valid);
        Self {
            all: both.map(|(train, valid)| train + valid).collect(),
            valid,
        }
    }

    /// The largest class, if it is large beside the others.
    fn large(&self) -> Option<usize> {
        let (largest, most) = self.all.iter().enumerate().max_by_key(|of| of.1)?;
        let whole: u64 = self.all.iter().sum();
        let others = (whole - most) as f64 / (self.all.len() as f64 - 1.0).max(1.0);
        (*most as f64 > LARGE * others).then_some(largest)
    }

    /// The classes without a validation image, if other classes have some.
    fn not_validated(&self) -> Vec<usize> {
        let has_valid = self.valid.iter().any(|count| *count > 0);
        (0..self.all.len())
            .filter(|class| has_valid && self.valid[*class] == 0)
            .collect()
    }

    fn about_large(&self, class: usize, name: &str) -> String {
        let share = |counts: &[u64]| {
            let whole: u64 = counts.iter().sum();
            (whole > 0).then(|| Fraction(counts[class] as f64 / whole as f64))
        };
        let of_all = share(&self.all).unwrap_or(Fraction(0.0));
        let of_valid = share(&self.valid)
            .map(|right| format!(" (top-1 of always naming it: {right} of validation)"));
        format!(
            "; the largest class, {name}, is {of_all}{}",
            of_valid.unwrap_or_default()
        )
    }
}

fn about_not_validated(names: &[String]) -> String {
    let (classes, them) = match names.len() {
        1 => ("class", "it"),
        _ => ("classes", "them"),
    };
    format!(
        "; no validation image of {classes} {}: top-1 says nothing about {them}",
        few(names, MOST_NAMED)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::load;

    /// The line on a folder with so many images of each class `a`, `b`, …, of which a tenth
    /// validates.
    fn told(counts: &[usize]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, count) in ["a", "b", "c"].iter().zip(counts) {
            let class = folder.path().join(name);
            std::fs::create_dir(&class).unwrap();
            for number in 0..*count {
                std::fs::write(class.join(format!("{number}.png")), b"not read").unwrap();
            }
        }
        let path = folder.path().display();
        let data = format!("{{kind: image-folder, path: {path}, valid_fraction: 0.1}}");
        let data: Data = serde_yaml::from_str(&data).unwrap();
        about_classes(&data, &load(&data, None).unwrap())
    }

    #[test]
    fn a_large_class_and_classes_without_a_validation_image_are_told() {
        assert_eq!(told(&[30, 20, 10]), None);
        assert_eq!(
            told(&[95, 4, 1]).unwrap(),
            "images: 3 classes, 1 to 95 images each; the largest class, a, is 95.0 % (top-1 of \
             always naming it: 100.0 % of validation); no validation image of classes b, c: top-1 \
             says nothing about them"
        );
        assert_eq!(
            told(&[10, 10, 2]).unwrap(),
            "images: 3 classes, 2 to 10 images each; no validation image of class c: top-1 says \
             nothing about it"
        );
        let large = told(&[90, 10]).unwrap();
        assert!(large.ends_with("is 90.0 % (top-1 of always naming it: 90.0 % of validation)"));
    }
}
