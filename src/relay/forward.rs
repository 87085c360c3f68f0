//! Passes an output on to a parent that may read slower than a program writes, without holding the
//! program up: the beginning and the end arrive, and of what is between them what there is time for.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use super::kept_output::HEAD_BYTES;

/// Most bytes behind the beginning that wait: more than the parent keeps of the end.
const MOST_WAITING_BYTES: usize = 4 << 20;

/// The side that takes pieces; the thread behind it ends once this is dropped and all is written.
#[derive(Debug)]
pub(super) struct Forward(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    pieces: Mutex<Pieces>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pieces {
    /// The pieces of the beginning, which are never dropped.
    head: VecDeque<Vec<u8>>,
    rest: VecDeque<Vec<u8>>,
    rest_bytes: usize,
    /// Bytes of all pieces so far.
    taken: usize,
    is_over: bool,
}

impl Pieces {
    fn add(&mut self, piece: &[u8]) {
        if self.taken < HEAD_BYTES {
            self.head.push_back(piece.to_vec());
        } else {
            self.rest.push_back(piece.to_vec());
            self.rest_bytes += piece.len();
        }
        self.taken = self.taken.saturating_add(piece.len());
        while self.rest_bytes > MOST_WAITING_BYTES {
            self.rest_bytes -= self
                .rest
                .pop_front()
                .map_or(self.rest_bytes, |lost| lost.len());
        }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let next = self.head.pop_front();
        next.or_else(|| {
            let piece = self.rest.pop_front()?;
            self.rest_bytes -= piece.len();
            Some(piece)
        })
    }
}

impl Waiting {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a piece; `None` at the end.
    fn next(&self) -> Option<Vec<u8>> {
        let mut pieces = self.pieces();
        loop {
            if let Some(piece) = pieces.next() {
                return Some(piece);
            }
            if pieces.is_over {
                return None;
            }
            pieces = self
                .changed
                .wait(pieces)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Forward {
    /// Writes pieces by `write` in a thread; the receiver hears when all are written.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        mut write: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<(Self, Receiver<()>)> {
        let waiting = Arc::new(Waiting::default());
        let (done, is_done) = sync_channel(1);
        let side = Arc::clone(&waiting);
        thread::Builder::new()
            .name("forward".to_owned())
            .spawn(move || {
                while let Some(piece) = side.next() {
                    write(&piece);
                }
                let _ = done.send(());
            })?;
        Ok((Self(waiting), is_done))
    }

    /// Never waits for the parent.
    pub(super) fn add(&self, piece: &[u8]) {
        self.0.pieces().add(piece);
        self.0.changed.notify_one();
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.0.pieces().is_over = true;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, time::Duration};

    use super::*;

    #[test]
    fn of_a_parent_that_reads_late_the_middle_is_lost_and_neither_end_is() {
        let (sender, written) = channel::<Vec<u8>>();
        let (open, gate) = channel::<()>();
        let mut is_open = false;
        let (forward, done) = Forward::start(move |piece| {
            if !is_open {
                is_open = gate.recv().is_ok();
            }
            sender.send(piece.to_vec()).unwrap();
        })
        .unwrap();
        let line = |number: usize| format!("{number:015}\n").into_bytes();
        let lines = 2 * (HEAD_BYTES + MOST_WAITING_BYTES) / 16;
        (0..lines).for_each(|number| forward.add(&line(number)));
        drop(forward);
        open.send(()).unwrap();
        done.recv_timeout(Duration::from_secs(20)).unwrap();
        let text: Vec<u8> = written.try_iter().flatten().collect();
        let numbers: Vec<usize> = text
            .chunks(16)
            .map(|line| str::from_utf8(&line[..15]).unwrap().parse().unwrap())
            .collect();
        let head = HEAD_BYTES / 16;
        let tail = MOST_WAITING_BYTES / 16;
        assert_eq!(numbers.len(), head + tail);
        assert!(numbers[..head].iter().copied().eq(0..head));
        assert!(numbers[head..].iter().copied().eq(lines - tail..lines));
    }

    #[test]
    fn a_parent_that_keeps_up_gets_all() {
        let (sender, written) = channel::<Vec<u8>>();
        let write = move |piece: &[u8]| sender.send(piece.to_vec()).unwrap();
        let (forward, done) = Forward::start(write).unwrap();
        for piece in [&b"one "[..], b"two ", b"three"] {
            forward.add(piece);
        }
        drop(forward);
        done.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(
            written.try_iter().flatten().collect::<Vec<u8>>(),
            b"one two three"
        );
    }
}
