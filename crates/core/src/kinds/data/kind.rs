//! The facts that each data kind defines, and the macros that declare the kinds.

use super::{
    Augmentation, Content, Counts, Dataset, Loader, PairSampling, PanelSplit, TextSampling,
    Tokenizer,
};

/// The facts that the settings of a data set define. A [`Data`](super::Data) of any kind has these
/// methods.
pub trait DataKind {
    /// The name in `data.kind`.
    fn kind(&self) -> &'static str;

    /// Content of a sample.
    fn content(&self) -> Content;

    /// The published set that this kind reads; `None` for the user's own files and generated data.
    fn dataset() -> Option<&'static Dataset>
    where
        Self: Sized,
    {
        None
    }

    /// Counts of the published bytes with these settings; `None` means that they must be counted.
    fn known_counts(&self, _sha256: &str) -> Option<Counts> {
        None
    }

    /// `data.path` as written; `None` if it is absent or this kind has no path.
    fn path(&self) -> Option<&str> {
        None
    }

    /// Mutable references to all paths that are given.
    fn paths_mut(&mut self) -> Vec<&mut String> {
        Vec::new()
    }

    /// Fraction of the data used for validation; `None` if the data set has its own split.
    fn valid_fraction(&self) -> Option<f64> {
        None
    }

    /// The key by whose value 0 there is no validation data; `None` where there is some, or only
    /// the data tells.
    fn without_validation(&self) -> Option<&'static str> {
        (self.valid_fraction() == Some(0.0)).then_some("data.valid_fraction")
    }

    /// The tokenizer; `None` for data without text.
    fn tokenizer(&self) -> Option<Tokenizer> {
        None
    }

    /// The file of the tokenizer of a text, which then counts instead of [`DataKind::tokenizer`].
    fn tokenizer_file(&self) -> Option<&str> {
        None
    }

    /// How the text is cut into samples; `None` for data without text.
    fn sampling(&self) -> Option<&TextSampling> {
        None
    }

    /// Mutable form of [`DataKind::sampling`].
    fn sampling_mut(&mut self) -> Option<&mut TextSampling> {
        None
    }

    /// Random augmentation of training images; `None` for data without images.
    fn augmentation(&self) -> Option<Augmentation> {
        None
    }

    /// How a panel is split, and the target of the prediction; `None` for data without a panel.
    fn panel_split(&self) -> Option<&PanelSplit> {
        None
    }

    /// Which rows of prompts and responses are read, and how they form batches; `None` for other
    /// data.
    fn pairs(&self) -> Option<&PairSampling> {
        None
    }

    /// Mutable form of [`DataKind::pairs`].
    fn pairs_mut(&mut self) -> Option<&mut PairSampling> {
        None
    }

    /// How batches are made; `None` without data.
    fn loader(&self) -> Option<&Loader>;

    /// Mutable form of [`DataKind::loader`].
    fn loader_mut(&mut self) -> Option<&mut Loader>;
}

/// Methods of [`DataKind`] for keys that several kinds have.
macro_rules! has {
    (loader) => {
        fn loader(&self) -> Option<&Loader> {
            Some(&self.loader)
        }

        fn loader_mut(&mut self) -> Option<&mut Loader> {
            Some(&mut self.loader)
        }
    };
    // An optional `path`: the folder of a known set.
    (folder) => {
        fn path(&self) -> Option<&str> {
            self.path.as_deref()
        }

        fn paths_mut(&mut self) -> Vec<&mut String> {
            self.path.iter_mut().collect()
        }
    };
    // A `path` that must be given.
    (path) => {
        fn path(&self) -> Option<&str> {
            Some(&self.path)
        }

        fn paths_mut(&mut self) -> Vec<&mut String> {
            vec![&mut self.path]
        }
    };
    (text) => {
        fn tokenizer(&self) -> Option<Tokenizer> {
            Some(self.tokenizer)
        }

        fn sampling(&self) -> Option<&TextSampling> {
            Some(&self.sampling)
        }

        fn sampling_mut(&mut self) -> Option<&mut TextSampling> {
            Some(&mut self.sampling)
        }
    };
    (augmentation) => {
        fn augmentation(&self) -> Option<Augmentation> {
            Some(self.augmentation)
        }
    };
    (panel) => {
        fn panel_split(&self) -> Option<&PanelSplit> {
            Some(&self.split)
        }

        fn valid_fraction(&self) -> Option<f64> {
            Some(self.split.valid_fraction)
        }
    };
    (pairs) => {
        fn pairs(&self) -> Option<&PairSampling> {
            Some(&self.sampling)
        }

        fn pairs_mut(&mut self) -> Option<&mut PairSampling> {
            Some(&mut self.sampling)
        }
    };
}
pub(super) use has;

/// Declares the kinds, each with the module of its settings: the enum that files are read into, and
/// the list of published sets.
macro_rules! data_kinds {
    ($($(#[$attribute:meta])+ $kind:ident($module:ident::$settings:ident),)+) => {
        $(pub use $module::$settings;)+

        /// The data set: its kind, its path, how it is cut into samples and loaded.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum Data {
            $($(#[$attribute])+ $kind($settings),)+
        }

        impl Data {
            /// The published set that this data reads; `None` for the user's own files and
            /// generated data.
            pub fn dataset(&self) -> Option<&'static Dataset> {
                match self {
                    $(Self::$kind(_) => <$settings as DataKind>::dataset(),)+
                }
            }
        }

        /// All published sets, in the order of their kinds.
        pub fn datasets() -> Vec<&'static Dataset> {
            [$(<$settings as DataKind>::dataset(),)+].into_iter().flatten().collect()
        }

        impl Deref for Data {
            type Target = dyn DataKind;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$kind(settings) => settings,)+
                }
            }
        }

        impl DerefMut for Data {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Self::$kind(settings) => settings,)+
                }
            }
        }
    };
}
pub(super) use data_kinds;
