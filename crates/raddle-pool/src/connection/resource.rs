//! Things that are dear to make and cheap to keep: made when they are first needed, shared, and let go of when nobody has needed them for a while.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{task::AbortHandle, time::Instant};

/// Keeps what was made, by its key.
pub(crate) struct ResourcePool<K, V> {
    ttl: Duration,
    /// So many are kept. If there are more, the one that was last used longest ago is let go of.
    most: usize,
    kept: Mutex<HashMap<K, Kept<V>>>,
}

struct Kept<V> {
    value: Arc<V>,
    last_used: Instant,
    /// Waits until nobody has used it for long enough.
    ending: Option<AbortHandle>,
}

impl<K, V> ResourcePool<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Send + Sync + 'static,
{
    pub(crate) fn new(ttl: Duration, most: usize) -> Self {
        Self { ttl, most, kept: Mutex::default() }
    }

    /// What is kept under this key, if anything is.
    pub(crate) fn peek(&self, key: &K) -> Option<Arc<V>> {
        self.lock().get(key).map(|known| Arc::clone(&known.value))
    }

    /// What is kept under this key, or was made now.
    pub(crate) fn get<E>(&'static self, key: &K, make: impl FnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        let mut kept = self.lock();
        if let Some(known) = kept.get_mut(key) {
            known.last_used = Instant::now();
            return Ok(Arc::clone(&known.value));
        }
        let value = Arc::new(make()?);
        // Ends when what it is about has been let go of, at the latest with the runtime that it belongs to.
        let ending = tokio::spawn(self.let_go_of(key.clone(), Arc::downgrade(&value)));
        let ending = Some(ending.abort_handle());
        let oldest = (kept.len() >= self.most).then(|| remove_oldest(&mut kept)).flatten();
        kept.insert(key.clone(), Kept { value: Arc::clone(&value), last_used: Instant::now(), ending });
        drop(kept);
        // Outside of the lock: what is dropped may take its time. Whoever uses it goes on to.
        oldest.iter().flat_map(|oldest| &oldest.ending).for_each(AbortHandle::abort);
        drop(oldest);
        Ok(value)
    }

    /// Waits until nobody has used it for long enough.
    async fn let_go_of(&'static self, key: K, value: Weak<V>) {
        let ending = Ending { pool: self, key, value };
        // As far away as there is, if it is to be kept for longer than that.
        let later = |from: Instant| from.checked_add(self.ttl).unwrap_or_else(|| from + Duration::from_secs(1 << 30));
        let mut due = later(Instant::now());
        loop {
            tokio::time::sleep_until(due).await;
            let mut kept = self.lock();
            let Some(known) = ending.find(&mut kept) else { return };
            if Arc::strong_count(&known.value) > 1 {
                known.last_used = Instant::now();
            }
            due = later(known.last_used);
            if due <= Instant::now() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Kept<V>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove_oldest<K: Clone + Eq + Hash, V>(kept: &mut HashMap<K, Kept<V>>) -> Option<Kept<V>> {
    let oldest = kept.iter().min_by_key(|(_, known)| known.last_used).map(|(key, _)| key.clone())?;
    kept.remove(&oldest)
}

/// Lets go of what it is about when it is dropped: because nobody needs it, or because the runtime ends that it belongs to.
struct Ending<K: Eq + Hash + 'static, V: 'static> {
    pool: &'static ResourcePool<K, V>,
    key: K,
    value: Weak<V>,
}

impl<K: Eq + Hash, V> Ending<K, V> {
    /// What it is about, if that is still what is kept.
    fn find<'a>(&self, kept: &'a mut HashMap<K, Kept<V>>) -> Option<&'a mut Kept<V>> {
        kept.get_mut(&self.key).filter(|known| std::ptr::eq(Arc::as_ptr(&known.value), self.value.as_ptr()))
    }
}

impl<K: Eq + Hash, V> Drop for Ending<K, V> {
    fn drop(&mut self) {
        let mut kept = self.pool.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let old = if self.find(&mut kept).is_some() { kept.remove(&self.key) } else { None };
        drop(kept);
        // Outside of the lock: what is dropped may take its time.
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_needs_for_a_while_is_let_go_of() {
        static POOL: LazyLock<ResourcePool<u8, u32>> = LazyLock::new(|| ResourcePool::new(Duration::from_secs(60), 8));
        let made = |value| POOL.get(&1, || Ok::<_, ()>(value)).unwrap();
        let first = made(10);
        assert_eq!(*made(11), 10, "it is shared");
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(*made(12), 10, "it was in use");
        drop(first);
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(*made(13), 10, "it is kept for a while");
        tokio::time::sleep(Duration::from_secs(121)).await;
        assert_eq!(*made(14), 14);
        assert!(POOL.get(&2, || Err(())).is_err());
    }
    #[tokio::test(start_paused = true)]
    async fn no_more_are_kept_than_there_is_room_for() {
        static POOL: LazyLock<ResourcePool<u8, u8>> = LazyLock::new(|| ResourcePool::new(Duration::from_secs(60), 3));
        for key in 0..100 {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(*POOL.get(&0, || Ok::<_, ()>(0)).unwrap(), 0, "what is used stays");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(*POOL.get(&key, || Ok::<_, ()>(key)).unwrap(), key);
            assert!(POOL.lock().len() <= 3);
        }
        assert_eq!(POOL.peek(&99).as_deref(), Some(&99));
        assert!(POOL.peek(&50).is_none());
        tokio::time::sleep(Duration::from_secs(130)).await;
        assert!(POOL.lock().is_empty(), "and it goes in its time");
    }
}
