//! Tensors in safetensors files: writing and reading. Tensors are copied from their device one by
//! one, so that host memory holds at most one extra tensor.

use std::{borrow::Cow, collections::HashMap, fs, path::Path};

use burn::tensor::{DType, Tensor, f16};
use kiln_core::{
    input,
    limits::WEIGHTS_BYTES,
    pretrained::{self, WeightsHeader},
};
use safetensors::{
    Dtype, SafeTensorError, SafeTensors, View, serialize_to_file,
    tensor::{Metadata, TensorInfo},
};

use crate::error::TrialError;

/// Purpose for which a file of tensors is read; it selects the message if the file does not fit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Checkpoint,
    InitialWeights,
}

/// A tensor on its way to a file.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingTensor {
    flat: Tensor<1>,
    shape: Vec<usize>,
}

/// Tensors by name.
pub(crate) type NamedTensors = Vec<(String, OutgoingTensor)>;

impl OutgoingTensor {
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        let shape = tensor.dims().to_vec();
        Self {
            flat: tensor.flatten(0, D - 1),
            shape,
        }
    }

    /// Whether both have the same bits. Waits for the devices.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.data() == other.data()
    }
}

impl View for OutgoingTensor {
    fn dtype(&self) -> Dtype {
        match self.flat.dtype() {
            DType::BF16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
            _ => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Waits for the device; panics if it failed, which the engine's guard makes an error of.
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.flat.clone().into_data().as_bytes().to_vec())
    }

    fn data_len(&self) -> usize {
        self.flat.dims()[0] * self.flat.dtype().size()
    }
}

/// Metadata beside the tensors.
pub(crate) type Said = HashMap<String, String>;

/// Writes a file of tensors. Waits for the device.
///
/// Errors: the file cannot be written.
pub(crate) fn write(
    path: &Path,
    tensors: NamedTensors,
    said: Option<Said>,
) -> Result<(), TrialError> {
    serialize(path, tensors, said).map_err(|error| match error {
        SafeTensorError::IoError(error) => TrialError::NotSaved(error),
        error => TrialError::Failed(format!("{}: {error}", path.display())),
    })
}

/// Writes a file of tensors with the mode of any new file: the library makes it one of its owner alone.
///
/// Errors: the file cannot be written.
pub(crate) fn serialize<V: View>(
    path: &Path,
    tensors: Vec<(String, V)>,
    said: Option<Said>,
) -> Result<(), SafeTensorError> {
    let mode = fs::File::create(path)?.metadata()?.permissions();
    serialize_to_file(tensors, said, path)?;
    fs::set_permissions(path, mode)?;
    Ok(())
}

/// A file of tensors, read.
#[derive(Debug)]
pub(crate) struct TensorFile {
    /// For messages.
    name: String,
    purpose: Purpose,
    bytes: Vec<u8>,
    metadata: Metadata,
    /// Offset of the first tensor's data.
    begin: usize,
}

impl TensorFile {
    /// Reads a checkpoint.
    ///
    /// Errors: the file cannot be read, or is not a safetensors file.
    pub(crate) fn read(path: &Path) -> Result<Self, TrialError> {
        let bytes = input::read(path, &WEIGHTS_BYTES)
            .map_err(|error| TrialError::Failed(format!("{}: {error}", path.display())))?;
        Self::of(path, bytes, Purpose::Checkpoint)
    }

    /// Parses the bytes that were read from `path`.
    ///
    /// Errors: it is not a safetensors file.
    pub(crate) fn of(path: &Path, bytes: Vec<u8>, purpose: Purpose) -> Result<Self, TrialError> {
        let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| {
            let remedy = match purpose {
                Purpose::Checkpoint => "",
                Purpose::InitialWeights => {
                    "; `train.initial_weights` needs a safetensors file: save the model as one"
                }
            };
            TrialError::Failed(format!("{}: {error}{remedy}", path.display()))
        })?;
        let name = match purpose {
            Purpose::Checkpoint => path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            Purpose::InitialWeights => path.display().to_string(),
        };
        Ok(Self {
            name,
            purpose,
            bytes,
            metadata,
            begin: header + size_of::<u64>(),
        })
    }

    /// The metadata entry of this name.
    pub(crate) fn said(&self, name: &str) -> Option<&str> {
        self.metadata
            .metadata()
            .as_ref()?
            .get(name)
            .map(String::as_str)
    }

    /// The shapes and formats of its tensors, and its metadata.
    pub(crate) fn header(&self) -> WeightsHeader {
        let mut header = WeightsHeader::default();
        for (name, info) in self.metadata.tensors() {
            let sizes = info.shape.iter().map(|size| *size as u64).collect();
            header.shapes.insert(name.clone(), sizes);
            header.formats.insert(name, format!("{:?}", info.dtype));
        }
        for (name, text) in self.metadata.metadata().iter().flatten() {
            header.metadata.insert(name.clone(), text.clone());
        }
        header
    }

    /// The names of its tensors.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.tensors().into_keys().collect()
    }

    /// The shape of a tensor.
    ///
    /// Errors: there is none of that name.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize], TrialError> {
        self.info(name).map(|info| info.shape.as_slice())
    }

    /// The numbers of a tensor that has so many, row after row.
    ///
    /// Errors: there is none of that name, of that size, in a format that parameters have.
    pub(crate) fn values(&self, name: &str, count: usize) -> Result<Vec<f32>, TrialError> {
        let (format, bytes) = self.bits(name)?;
        let values: Vec<f32> = match format {
            Dtype::F32 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|four| f32::from_le_bytes(*four))
                .collect(),
            Dtype::BF16 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|two| f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16))
                .collect(),
            Dtype::F16 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|two| f16::from_le_bytes(*two).to_f32())
                .collect(),
            other => {
                return Err(self.unfit(
                    name,
                    &format!("has the format {other:?}; F32, F16 and BF16 are supported"),
                ));
            }
        };
        if values.len() != count {
            return Err(self.unfit(
                name,
                &format!(
                    "has {} values, and the model's parameter has {count}",
                    values.len()
                ),
            ));
        }
        Ok(values)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, TrialError> {
        self.metadata
            .info(name)
            .ok_or_else(|| self.unfit(name, "is missing"))
    }

    /// The bits of a tensor and their format.
    ///
    /// Errors: there is none of that name.
    pub(crate) fn bits(&self, name: &str) -> Result<(Dtype, &[u8]), TrialError> {
        let info = self.info(name)?;
        let (from, to) = info.data_offsets;
        Ok((info.dtype, &self.bytes[self.begin + from..self.begin + to]))
    }

    /// The error of a tensor that does not fit the model.
    pub(crate) fn unfit(&self, name: &str, what: &str) -> TrialError {
        TrialError::Failed(match self.purpose {
            Purpose::Checkpoint => format!(
                "the checkpoint does not fit the model: in {}, `{name}` {what}; was the model's code \
                 changed, or is its `trial.yaml` another trial's? To train from the beginning, move \
                 the trial's folder `checkpoint` away",
                self.name
            ),
            Purpose::InitialWeights => pretrained::unfit(&self.name, name, what, ""),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::tensor::{Device, FloatDType};

    use super::*;

    #[test]
    fn numbers_come_back_as_they_left_in_both_formats() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let numbers = [1.0_f32, -0.1, f32::MIN_POSITIVE, 3.4e38, 1.0e-40, 0.0];
        let tensor = Tensor::<2>::from_data(
            [
                [numbers[0], numbers[1], numbers[2]],
                [numbers[3], numbers[4], numbers[5]],
            ],
            &Device::flex(),
        );
        let narrow =
            Tensor::<1>::from_data([1.5, -0.0078125], &Device::flex()).cast(FloatDType::BF16);
        write(
            &path,
            vec![
                (
                    "wide".to_owned(),
                    OutgoingTensor::new(tensor.swap_dims(0, 1)),
                ),
                ("narrow".to_owned(), OutgoingTensor::new(narrow)),
            ],
            None,
        )
        .unwrap();
        let arrived = TensorFile::read(&path).unwrap();
        assert_eq!(arrived.shape("wide").unwrap(), [3, 2]);
        let turned = [0, 3, 1, 4, 2, 5].map(|at| numbers[at].to_bits());
        assert_eq!(
            arrived
                .values("wide", 6)
                .unwrap()
                .into_iter()
                .map(f32::to_bits)
                .collect::<Vec<u32>>(),
            turned
        );
        assert_eq!(arrived.values("narrow", 2).unwrap(), [1.5, -0.0078125]);
        let mut names = arrived.names();
        names.sort();
        assert_eq!(names, ["narrow", "wide"]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        write(
            &path,
            vec![(
                "weight".to_owned(),
                OutgoingTensor::new(Tensor::<1>::zeros([2], &Device::flex())),
            )],
            None,
        )
        .unwrap();
        let arrived = TensorFile::read(&path).unwrap();
        let message = arrived.values("weight", 3).unwrap_err().to_string();
        assert!(
            message.contains(
                "in model.safetensors, `weight` has 2 values, and the model's parameter has 3; was"
            ),
            "{message}"
        );
        assert!(
            arrived
                .values("bias", 3)
                .unwrap_err()
                .to_string()
                .contains("`bias` is missing; was")
        );
        fs::write(&path, "no tensors").unwrap();
        assert!(TensorFile::read(&path).is_err());
    }

    /// Files of several shapes and formats.
    fn seeds() -> Vec<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let tensor = |rows: usize, format: FloatDType| {
            OutgoingTensor::new(Tensor::<2>::zeros([rows, 3], &Device::flex()).cast(format))
        };
        let formats = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];
        let saved = |(count, format): (usize, FloatDType)| {
            let tensors = (0..count)
                .map(|number| (format!("memory.{number}.hidden"), tensor(count, format)))
                .collect();
            let said = Said::from([("kiln_model".to_owned(), "{\"kind\":\"mlp\"}".to_owned())]);
            write(&path, tensors, (count > 1).then_some(said)).unwrap();
            fs::read(&path).unwrap()
        };
        (1..4)
            .flat_map(|count| formats.map(|format| (count, format)))
            .map(saved)
            .collect()
    }

    #[test]
    fn tensors_under_fuzz() {
        const WORDS: [&str; 16] = [
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "0",
            "-1",
            "18446744073709551615",
            "\"F32\"",
            "\"BOOL\"",
            "\"shape\":[]",
            "\"data_offsets\":[0,0]",
            "__metadata__",
            " ",
        ];
        crate::fuzzing::fire("safetensors", seeds(), &WORDS, |bytes| {
            for purpose in [Purpose::Checkpoint, Purpose::InitialWeights] {
                let read = TensorFile::of(Path::new("x.safetensors"), bytes.to_vec(), purpose);
                let Ok(file) = read else { continue };
                for name in file.names() {
                    let shape = file.shape(&name).unwrap().to_vec();
                    let (format, bits) = file.bits(&name).unwrap();
                    let values = file.values(&name, shape.iter().product());
                    assert!(values.is_err() || bits.len() <= bytes.len(), "{format:?}");
                    assert!(file.values(&name, usize::MAX).is_err());
                }
                assert!(file.said("none of this name").is_none());
            }
        });
    }
}
