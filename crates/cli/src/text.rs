//! Formatting numbers for people.

/// A number of bytes with a binary unit and at most three digits before it: `512 KiB`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        // Rounded, the value would be shown as 1024 of the smaller unit.
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A number with its thousands apart: `1 234 567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// `1 server`, `2 servers`.
pub fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Rows under their headings, in columns as wide as they must be. The columns in `right` (by their index) are
/// numbers.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
    let widths: Vec<usize> =
        (0..columns).map(|c| rows.iter().map(|r| cell(r, c).chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, &width) in widths.iter().enumerate() {
            let text = cell(row, column);
            if right.contains(&column) {
                line.push_str(&format!("{text:>width$}  "));
            } else {
                line.push_str(&format!("{text:<width$}  "));
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// How evenly something is spread over servers: the busiest's share, relative to a fair one (1.0: perfectly
/// even). `None` when there is nothing to spread.
pub fn imbalance(shares: &[u64]) -> Option<f64> {
    let total: u64 = shares.iter().sum();
    let most = *shares.iter().max()?;
    (total > 0).then(|| most as f64 * shares.len() as f64 / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_reads_best() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (512 << 10, "512 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn thousands_are_apart() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (1_234_567, "1 234 567")] {
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["name".into(), "n".into()], vec!["ä".into(), "10".into()], vec!["x".into()]];
        assert_eq!(table(&rows, &[1]), "name   n\nä     10\nx\n");
    }

    #[test]
    fn imbalance_is_one_when_all_have_the_same() {
        assert_eq!(imbalance(&[5, 5, 5]), Some(1.0));
        assert_eq!(imbalance(&[10, 0]), Some(2.0));
        assert_eq!(imbalance(&[0, 0]), None);
        assert_eq!(imbalance(&[]), None);
    }
}
