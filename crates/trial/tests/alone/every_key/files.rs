//! The files that experiment files of the cases name, written once: fragments, trained parameters,
//! data of every kind, programs, a driver.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use super::{images, pairs, panels, program::write_program, weights};
use crate::common::in_repository;

/// Files that an experiment file may name by a relative path.
const NAMED: [&str; 4] = ["base", "trained.safetensors", "one", "two"];

/// A folder with all of them, gone with this value.
pub(crate) struct Files {
    folder: tempfile::TempDir,
    driver: OnceLock<PathBuf>,
    sampled: OnceLock<PathBuf>,
}

impl Files {
    /// Two fragments, trained parameters, and two folders with the files of every kind of text, of
    /// images, of panels, and of prompts and responses.
    pub(crate) fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        fs::create_dir(place.join("base")).unwrap();
        fs::write(place.join("base/short.yaml"), "train: {steps: 4}\n").unwrap();
        fs::write(place.join("base/long.yaml"), "train: {steps: 8}\n").unwrap();
        weights::write(&place.join("trained.safetensors"));
        for (name, words) in [
            ("one", ["the river", "runs", "to the sea"]),
            ("two", ["an oak", "grows", "by the road"]),
        ] {
            fs::create_dir_all(place.join(name).join("pairs")).unwrap();
            let line = |number: usize| {
                format!(
                    "{} {} {} {}\n",
                    words[number % 3],
                    number % 7,
                    words[number * number % 3],
                    words[number / 2 % 3]
                )
            };
            let text = |lines: usize| (0..lines).map(line).collect::<String>();
            for (file, lines) in [("input.txt", 150), ("train.txt", 150), ("valid.txt", 20)] {
                fs::write(place.join(name).join(file), text(lines)).unwrap();
            }
            images::write(&place.join(name), words[0].len());
            panels::write(&place.join(name), words[0].len());
            pairs::write(&place.join(name).join("pairs"), words[0].len());
        }
        Self {
            folder,
            driver: OnceLock::new(),
            sampled: OnceLock::new(),
        }
    }

    /// Makes them appear in another folder. Nothing writes to them there.
    pub(crate) fn link_into(&self, folder: &Path) {
        for name in NAMED {
            symlink(self.folder.path().join(name), folder.join(name)).unwrap();
        }
    }

    /// The fake NVML with one small device.
    pub(crate) fn driver(&self) -> &Path {
        self.driver.get_or_init(|| {
            let scenario =
                fake_nvml::Scenario::read(&in_repository("tests/scenarios/small.yaml")).unwrap();
            fake_nvml::install::install(self.folder.path(), &scenario).unwrap()
        })
    }

    /// A child that waits until the sampler has looked at it eight times, for two seconds at most,
    /// and plays a scenario then.
    pub(crate) fn sampled_child(&self) -> &Path {
        self.sampled.get_or_init(|| {
            let path = self.folder.path().join("sampled.sh");
            let text = format!(
                "#!/bin/sh\n\
                 folder=$(sed -n 's/^folder: *//p' \"$1\" | tr -d \"'\\\"\")\n\
                 turns=0\n\
                 while [ \"$(wc -l <\"$folder/../../../samples.csv\")\" -le 8 ] && [ $turns -lt 40 \
                 ]; do sleep 0.05; turns=$((turns + 1)); done\n\
                 exec '{}' \"$@\"\n",
                scripted_child().display()
            );
            write_program(&path, &text);
            path
        })
    }
}

/// The child of `tests/scripted_child`.
pub(crate) fn scripted_child() -> PathBuf {
    in_repository("tests/scripted_child/child.sh")
}
