//! Reads from the last part of a program's output why it ended. Pure.

mod aside;
mod traceback;

use kiln_core::plan::{speaks_of_memory, without_rank};

use self::{
    aside::is_aside,
    traceback::{Exception, is_consequence, is_error, tracebacks},
};

/// Lines at the end of standard error that may speak of memory where there is no traceback.
pub const STDERR_LINES: usize = 50;
/// Words of the lines with which a runtime ends its process.
const FATAL: [&str; 3] = ["terminate called", "what():", "memory allocation of "];

/// The end of an output, and the exceptions of Python's tracebacks in it.
#[derive(Debug)]
pub struct Words<'a> {
    /// The output, without the backtrace of a Rust program.
    all: &'a str,
    /// The same, or only the part after the last traceback if the program went on after it.
    said: &'a str,
    /// The exceptions that explain the end; empty if the program went on after them.
    exceptions: Vec<Exception<'a>>,
    has_traceback: bool,
}

impl<'a> Words<'a> {
    pub fn of(tail: &'a str) -> Self {
        let lines: Vec<&str> = tail.split(['\n', '\r']).collect();
        let found = tracebacks(&lines);
        let goes_on = found.are_handled(&lines);
        let all = before_backtrace(tail);
        let length: usize = lines[..found.until].iter().map(|line| line.len() + 1).sum();
        Self {
            all,
            said: match goes_on {
                true => before_backtrace(tail.get(length..).unwrap_or_default()),
                false => all,
            },
            has_traceback: !found.exceptions.is_empty(),
            exceptions: match goes_on {
                true => Vec::new(),
                false => found.exceptions,
            },
        }
    }

    /// The line that says most about an end: the exception of the last traceback, of `torchrun` that
    /// of the process which failed first; without one, or if the program went on after it, the last
    /// line that is no aside.
    pub fn telling_line(&self) -> Option<&'a str> {
        self.exception().or_else(|| self.last_words())
    }

    /// [`Self::telling_line`], or the last line of any kind.
    pub fn line(&self) -> Option<&'a str> {
        self.telling_line().or_else(|| self.lines().next())
    }

    /// The last line of a program that kiln then stopped. None with a traceback: the stop may have
    /// caused it.
    pub fn line_before_a_stop(&self) -> Option<&'a str> {
        match self.has_traceback {
            true => None,
            false => self.last_words(),
        }
    }

    fn exception(&self) -> Option<&'a str> {
        let is_own = |exception: &&Exception| !is_consequence(without_rank(exception.line));
        let mut own = self.exceptions.iter().filter(is_own);
        let first = own.clone().find(|exception| !exception.rank.is_empty());
        let chosen = match first {
            Some(first) => own.rfind(|exception| exception.rank == first.rank),
            None => own.next_back(),
        };
        let chosen = chosen.or(self.exceptions.last());
        chosen.map(|exception| exception.line)
    }

    fn last_words(&self) -> Option<&'a str> {
        self.lines().find(|line| !is_aside(line))
    }

    /// Whether memory ran out: exceptions decide; without one, the last `count` lines, and those
    /// before them that look like the end of a process.
    pub fn speak_of_memory(&self, count: usize) -> bool {
        self.end_by_memory() || (self.exceptions.is_empty() && self.mention_memory(count))
    }

    /// [`Self::speak_of_memory`] for both outputs of a program, with the `count` of each: an exception
    /// in one decides for both.
    pub(super) fn either_speaks_of_memory(of: &[(Self, usize); 2]) -> bool {
        let has_exception = of.iter().any(|(words, _)| !words.exceptions.is_empty());
        of.iter().any(|(words, count)| {
            words.end_by_memory() || (!has_exception && words.mention_memory(*count))
        })
    }

    fn end_by_memory(&self) -> bool {
        let is_fatal = |line: &str| FATAL.iter().any(|words| line.contains(words));
        self.exceptions
            .iter()
            .any(|exception| speaks_of_memory(&exception.message))
            || self
                .all
                .split(['\n', '\r'])
                .any(|line| is_fatal(line) && speaks_of_memory(line))
    }

    fn mention_memory(&self, count: usize) -> bool {
        let last: Vec<&str> = self.said.lines().rev().take(count).collect();
        speaks_of_memory(&last.join("\n"))
            || self
                .lines()
                .any(|line| is_error(without_rank(line)) && speaks_of_memory(line))
    }

    /// The last line first.
    fn lines(&self) -> impl Iterator<Item = &'a str> {
        let lines = self.said.split(['\n', '\r']).rev().map(str::trim);
        lines.filter(|line| !line.is_empty())
    }
}

fn before_backtrace(text: &str) -> &str {
    text.split("stack backtrace:").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes of torchrun, of which the second ran out of memory, and torchrun's own words.
    fn of_torchrun(exception: &str) -> String {
        let own = "  File \"torch/run.py\", line 990, in main\n    run(args)\n".repeat(40);
        format!(
            "W1130 12:31:22.413000 30369 torch/distributed/run.py:851] Setting OMP_NUM_THREADS\n\
             [rank1]: Traceback (most recent call last):\n\
             [rank0]: Traceback (most recent call last):\n\
             [rank1]:   File \"train.py\", line 9, in <module>\n\
             [rank1]: {exception}\n\
             [rank0]:   File \"train.py\", line 6, in <module>\n\
             [rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:17088\n\
             W1130 12:31:26.640000 30369 api.py:1012] Sending process 30378 closing signal\n\
             Traceback (most recent call last):\n{own}\
             torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
             ============================================================\n\
             ddp/train.py FAILED\n\
             ============================================================\n"
        )
    }

    #[test]
    fn exceptions_decide_whether_memory_ran_out() {
        let nccl = "Traceback (most recent call last):\n  File \"x.py\"\n\
                    torch.distributed.DistBackendError: NCCL error\nLast error:\n\
                    Cuda failure 2 'out of memory'\n";
        let chained = "Traceback (most recent call last):\n  File \"x.py\"\nMemoryError\n\n\
                       During handling of the above exception, another exception occurred:\n\n\
                       Traceback (most recent call last):\n  File \"x.py\"\nValueError: no batch\n";
        let of_cpp = format!(
            "terminate called after throwing an instance of 'std::bad_alloc'\n{}",
            "frame #0: x\n".repeat(60)
        );
        let of_default = "[default0]:Traceback (most recent call last):\n\
                          [default0]:  File \"x.py\"\n[default0]:MemoryError\n";
        let far = format!(
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory\n{}",
            "more\n".repeat(60)
        );
        let of_allocator = of_torchrun("RuntimeError: DefaultCPUAllocator: can't allocate memory");
        let of_python = of_torchrun("MemoryError");
        for text in [
            nccl,
            &of_allocator,
            &of_python,
            chained,
            &of_cpp,
            of_default,
            &far,
            "train: CUDA out of memory\nbye\n",
        ] {
            assert!(Words::of(text).speak_of_memory(50), "{text}");
        }
        let early = "warning: retrying after CUDA out of memory\n\
                     Traceback (most recent call last):\n  File \"x.py\", line 26\n    raise \
                     KeyError\nKeyError: 'unrelated'\n";
        let far = format!("probing: out of memory\n{}", "more\n".repeat(60));
        let of_value = of_torchrun("ValueError: boom");
        for text in [early, &of_value, &far, "out of memory errors: 0\n", ""] {
            assert!(!Words::of(text).speak_of_memory(50), "{text}");
        }
    }

    /// Source: TensorFlow 2's `Model.fit`: of a graph, and of a single operation.
    #[test]
    fn tensorflow_tells_of_memory_behind_a_blank_line() {
        let traceback =
            "Traceback (most recent call last):\n  File \"x.py\", line 9, in <module>\n";
        let class = "tensorflow.python.framework.errors_impl.ResourceExhaustedError:";
        let hint = "Hint: If you want to see a list of allocated tensors when OOM happens, add \
                    report_tensor_allocations_upon_oom to RunOptions\n [Op:MatMul]\n";
        let graph = |what: &str| {
            format!(
                "{traceback}{class} Graph execution error:\n\nDetected at node 'm/MatMul' defined at \
                 (most recent call last):\n    File \"x.py\", line 9, in <module>\n      \
                 model.fit(x, y)\n\nNode: 'm/MatMul'\n{what}\n\t [[{{{{node m/MatMul}}}}]]\n{hint}"
            )
        };
        let no_memory = "OOM when allocating tensor with shape[90000,90000] and type float";
        let eager = format!("{traceback}{class} {{{{x}}}} {no_memory} [Op:MatMul]\n\n{hint}");
        for text in [
            graph(no_memory),
            graph("SameWorkerRecvDone unable to allocate output tensor. Key: x"),
            eager.clone(),
            eager.replace(no_memory, "failed to allocate memory"),
        ] {
            let words = Words::of(&text);
            assert!(words.speak_of_memory(50), "{text}");
            assert!(words.line().unwrap().starts_with(class), "{text}");
        }
        let internal = |what: &str| graph(what).replace("ResourceExhausted", "Internal");
        assert!(Words::of(&internal("Dst tensor is not initialized.")).speak_of_memory(50));
        let other = "ValueError: no batch\n";
        for text in [
            graph("file system quota exceeded"),
            graph("Too many open files"),
            graph("No space left on device; OOM handler not needed"),
            internal("No algorithm worked!"),
            format!("{eager}{traceback}{other}"),
            format!("{}{traceback}{other}", graph("quota exceeded")),
        ] {
            assert!(!Words::of(&text).speak_of_memory(50), "{text}");
        }
    }

    /// A traceback, and ten lines of the program that went on.
    fn handled(exception: &str) -> String {
        let lines = "INFO step fine\n".repeat(10);
        format!("Traceback (most recent call last):\n  File \"x.py\"\n{exception}\n{lines}")
    }

    #[test]
    fn a_handled_exception_says_nothing_about_the_end() {
        let traceback = "Traceback (most recent call last):\n  File \"y.py\"\n";
        let ignored = "Exception ignored in: <function x>\n";
        let no_module = handled("ModuleNotFoundError: No module named 'apex'");
        let no_memory = handled("MemoryError: batch 512");
        for (text, is_memory, reason) in [
            (
                format!("{no_module}RuntimeError: CUDA out of memory. Tried 3 GiB\n"),
                true,
                "RuntimeError: CUDA out of memory. Tried 3 GiB",
            ),
            (
                format!("{no_module}cudaMalloc failed: out of memory\n"),
                true,
                "cudaMalloc failed: out of memory",
            ),
            (
                format!("{no_module}error: learning rate is too large\n"),
                false,
                "error: learning rate is too large",
            ),
            (
                format!("{no_memory}error: bad labels\n"),
                false,
                "error: bad labels",
            ),
            (
                format!("{no_memory}{traceback}ValueError: bad label 17\n"),
                false,
                "ValueError: bad label 17",
            ),
            (
                format!("{traceback}MemoryError\nretrying\n{traceback}KeyError: 'x'\n"),
                false,
                "KeyError: 'x'",
            ),
            (
                format!("{traceback}MemoryError\n{ignored}{traceback}KeyError: 'x'\n"),
                true,
                "MemoryError",
            ),
            (
                format!("{traceback}MemoryError\n{traceback}x.CalledProcessError: y\n"),
                true,
                "MemoryError",
            ),
            // A child of `multiprocessing`, and what its parent says of it.
            (
                format!("Process Fork-1:\n{traceback}MemoryError\n{traceback}EOFError\n"),
                true,
                "MemoryError",
            ),
            (
                format!(
                    "{traceback}MemoryError\n{}",
                    "srun: error: node7: task 7\n".repeat(9)
                ),
                true,
                "MemoryError",
            ),
            (
                format!(
                    "{traceback}ValueError: label\n{}",
                    "worker closed\n".repeat(12)
                ),
                false,
                "ValueError: label",
            ),
            (
                format!("{no_memory}{}no data\n", "INFO step fine\n".repeat(60)),
                false,
                "no data",
            ),
            (
                format!(
                    "{traceback}MemoryError\n{}{}",
                    "wandb: loss 1\n".repeat(20),
                    "W1130 12:31:26.640000 30369 torch/x/api.py:1012] Sending\n".repeat(9)
                ),
                true,
                "MemoryError",
            ),
        ] {
            let words = Words::of(&text);
            assert_eq!(words.speak_of_memory(50), is_memory, "{text}");
            assert_eq!(words.line(), Some(reason), "{text}");
        }
        assert_eq!(Words::of(&no_memory).line_before_a_stop(), None);
    }

    #[test]
    fn a_traceback_on_one_output_outweighs_words_on_the_other() {
        let both = |stdout: &str, stderr: &str| {
            Words::either_speaks_of_memory(&[(Words::of(stdout), 20), (Words::of(stderr), 50)])
        };
        let traceback = "Traceback (most recent call last):\n  File \"x.py\"\nKeyError: 'x'\n";
        assert!(both("CUDA out of memory\n", "bye\n"));
        assert!(!both("CUDA out of memory, trying again\n", traceback));
        assert!(both(
            "fine\n",
            &traceback.replace("KeyError: 'x'", "MemoryError")
        ));
    }

    const LOADER: &str = "Traceback (most recent call last):\n  File \"loader.py\"\n\
                          KeyError: Caught KeyError in DataLoader worker process 1.\n\
                          Original Traceback (most recent call last):\n  File \"fetch.py\"\n\
                          KeyError: 'sample 100'\n\n";
    const HYDRA: &str = "Traceback (most recent call last):\n  File \"train.py\"\n\
                         JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory\n--------\n\
                         For simplicity, JAX has removed its internal frames.\n\n\
                         Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack \
                         trace.\n";
    const WARNED: &str = "Traceback (most recent call last):\n  File x\nValueError: real\n\
                          /usr/lib/resource_tracker.py:254: UserWarning: There appear to be 1\n  \
                          warnings.warn('resource_tracker: There appear to be %d '\n";

    #[test]
    fn a_reason_has_the_line_that_says_most() {
        let of_torchrun = of_torchrun("ValueError: boom on rank 1");
        for (text, wanted) in [
            (of_torchrun.as_str(), "[rank1]: ValueError: boom on rank 1"),
            (
                "Traceback (most recent call last):\n  File x\nRuntimeError: bad\nsecond line\n",
                "RuntimeError: bad",
            ),
            (LOADER, "KeyError: 'sample 100'"),
            (HYDRA, "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory"),
            (WARNED, "ValueError: real"),
            (
                "Traceback (most recent call last):\n  File x\nsubprocess.CalledProcessError: x\n",
                "subprocess.CalledProcessError: x",
            ),
            (
                "loading\n/x/tree.py:21: `is` is deprecated, use `in`\n=====\n\
                 \r100%|####| 10/10 [00:01<00:00]\n\u{1b}[A",
                "loading",
            ),
            ("first\nplease give --data\n\n", "please give --data"),
            ("KiB\n3145728\n", "3145728"),
            (
                "\r100%|####| 10/10 [00:01<00:00]",
                "100%|####| 10/10 [00:01<00:00]",
            ),
            (
                "thread panicked\nno such file\nnote: run with x\nstack backtrace:\n 0: main\n",
                "no such file",
            ),
        ] {
            assert_eq!(Words::of(text).line(), Some(wanted), "{text}");
        }
        assert_eq!(Words::of("\n \n").line(), None);
    }

    #[test]
    fn an_exception_that_a_stop_may_have_caused_is_no_reason() {
        let of = |text: &'static str| Words::of(text).line_before_a_stop();
        assert_eq!(of("waiting for the lock\n"), Some("waiting for the lock"));
        assert_eq!(of(LOADER), None);
    }
}
