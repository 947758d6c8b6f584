//! Host names as keys: exact ones, and `*.example.org` for one label in front.

use std::borrow::Cow;
use std::collections::HashMap;

/// What has been filed under host names, by its index in somebody's list.
#[derive(Debug, Default)]
pub(super) struct Names {
    exact: HashMap<Box<str>, Vec<usize>>,
    /// By what follows `*.`.
    wild: HashMap<Box<str>, Vec<usize>>,
}

impl Names {
    /// Files `index` under a name, exact or `*.NAME`, which is in lower case.
    pub(super) fn add(&mut self, name: &str, index: usize) {
        let (map, key) = match name.strip_prefix("*.") {
            Some(parent) => (&mut self.wild, parent),
            None => (&mut self.exact, name),
        };
        map.entry(key.into()).or_default().push(index);
    }

    /// What is filed under names that fit this host: under the exact one first, each in the order of filing.
    ///
    /// Case does not matter, nor does a final dot.
    pub(super) fn get(&self, host: &str) -> impl Iterator<Item = usize> {
        let host = host.strip_suffix('.').unwrap_or(host);
        let host = match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(host.to_ascii_lowercase()),
            false => Cow::Borrowed(host),
        };
        let parent = match host.split_once('.') {
            Some((label, parent)) if !label.is_empty() => self.wild.get(parent),
            _ => None,
        };
        let lists = [self.exact.get(&*host), parent];
        lists.into_iter().flatten().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_one_label_and_case_is_none() {
        let mut names = Names::default();
        for (index, name) in ["example.org", "*.example.org", "a.example.org", "*.org"]
            .into_iter()
            .enumerate()
        {
            names.add(name, index);
        }
        for (host, expected) in [
            ("example.org", &[0, 3][..]),
            ("EXAMPLE.org.", &[0, 3]),
            ("a.example.org", &[2, 1]),
            ("B.example.org", &[1]),
            ("a.b.example.org", &[]),
            (".example.org", &[]),
            (".org", &[]),
            ("org", &[]),
            ("", &[]),
            (".", &[]),
        ] {
            assert_eq!(names.get(host).collect::<Vec<_>>(), expected, "{host}");
        }
    }
}
