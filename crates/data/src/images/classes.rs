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
    let [train, valid] = class_counts(found);
    let all: Vec<u64> = train
        .iter()
        .zip(&valid)
        .map(|(one, two)| one + two)
        .collect();
    let whole: u64 = all.iter().sum();
    let (largest, most) = all.iter().copied().enumerate().max_by_key(|of| of.1)?;
    let least = all.iter().copied().min()?;
    let others = (whole - most) as f64 / (all.len() as f64 - 1.0).max(1.0);
    let is_large = most as f64 > LARGE * others;
    let valid_images = found.valid.labels.len();
    let absent: Vec<usize> = (0..all.len())
        .filter(|class| valid_images > 0 && valid[*class] == 0)
        .collect();
    if !is_large && absent.is_empty() {
        return None;
    }
    let named = describe(data).ok().and_then(|described| described.classes);
    let named = named.unwrap_or_default();
    let name = |class: usize| {
        named
            .get(class)
            .cloned()
            .unwrap_or_else(|| class.to_string())
    };
    let mut line = format!(
        "images: {} classes, {least} to {most} images each",
        all.len()
    );
    if is_large {
        let share = Fraction(most as f64 / whole as f64);
        line.push_str(&format!(
            "; the largest class, {}, is {share}",
            name(largest)
        ));
        if valid_images > 0 {
            let right = Fraction(valid[largest] as f64 / valid_images as f64);
            line.push_str(&format!(
                " (top-1 of always naming it: {right} of validation)"
            ));
        }
    }
    if !absent.is_empty() {
        let names: Vec<String> = absent.iter().map(|class| name(*class)).collect();
        let (classes, them) = match absent.len() {
            1 => ("class", "it"),
            _ => ("classes", "them"),
        };
        line.push_str(&format!(
            "; no validation image of {classes} {}: top-1 says nothing about {them}",
            few(&names, MOST_NAMED)
        ));
    }
    Some(line)
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
