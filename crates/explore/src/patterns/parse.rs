//! Reading a patterns file, so that each error names its place.

use super::{
    Layout, NAME_MAX, Operation, PROCESSES_MAX, Pattern, Phase, REQUEST_MAX, SECTOR, STONEWALL_MAX,
    Spatiality, THINK_MAX, TOTAL_MAX, VERSION,
};
use crate::error::ExploreError;
use serde_json::{Map, Value};
use std::collections::HashMap;

type Result<T> = std::result::Result<T, ExploreError>;

/// The patterns of a file.
pub(super) fn file(text: &str) -> Result<Vec<Pattern>> {
    let whole: Value = serde_json::from_str(text)
        .map_err(|e| ExploreError::at(format!("line {}, column {}", e.line(), e.column()), no_json(&e)))?;
    let top = Object::of(&whole, "")?;
    // First of all: a newer version may have fields that this one does not know.
    match top.given("version") {
        Some(Value::Number(number)) if number.as_u64() == Some(VERSION) => {}
        Some(other) => {
            let what =
                format!("{other} is not known; this program knows version {VERSION}: use a newer Bivouac");
            return Err(ExploreError::at("version", what));
        }
        None => return Err(ExploreError::at("version", format!("is missing (it is {VERSION})"))),
    }
    top.knows(&["version", "patterns"])?;
    let list = top.list("patterns")?;
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut patterns = Vec::new();
    for (at, value) in list.iter().enumerate() {
        let place = format!("patterns[{at}]");
        let pattern = pattern(&Object::of(value, &place)?)?;
        if let Some(first) = names.insert(pattern.name.clone(), at) {
            let what = format!("{:?} is the name of patterns[{first}], too", pattern.name);
            return Err(ExploreError::at(format!("{place}.name"), what));
        }
        patterns.push(pattern);
    }
    Ok(patterns)
}

/// Why a text is no JSON, without the position, which comes before it.
fn no_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let cause = text.split(" at line ").next().unwrap_or_default();
    format!("this is no JSON: {cause}")
}

fn pattern(from: &Object<'_>) -> Result<Pattern> {
    from.knows(&["name", "nodes", "processes", "phases"])?;
    let name = from.text("name")?;
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(from.wrong("name", format!("has 1 to {NAME_MAX} bytes, without control characters")));
    }
    let nodes = from.number("nodes", 1, PROCESSES_MAX)?;
    let processes = from.number("processes", 1, PROCESSES_MAX)?;
    if processes % nodes != 0 {
        let what = format!("{processes} is no multiple of the {nodes} nodes: each has as many");
        return Err(from.wrong("processes", what));
    }
    let phases = from.list("phases")?.iter().enumerate();
    let phases = phases
        .map(|(at, value)| phase(&Object::of(value, &format!("{}.phases[{at}]", from.place))?, processes));
    // Both are at most 2^20.
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Ok(Pattern {
        name: name.to_owned(),
        nodes: number(nodes),
        processes: number(processes),
        phases: phases.collect::<Result<_>>()?,
    })
}

fn phase(from: &Object<'_>, processes: u64) -> Result<Phase> {
    from.knows(&[
        "operation",
        "layout",
        "spatiality",
        "request",
        "total",
        "stonewall",
        "read_share",
        "direct",
        "fsync",
        "think",
    ])?;
    let operation = from.word(
        "operation",
        &[("write", Operation::Write), ("read", Operation::Read), ("mixed", Operation::Mixed)],
    )?;
    let request = from.number("request", 1, REQUEST_MAX)?;
    let total = match from.given("total") {
        Some(_) => Some(from.number("total", 1, TOTAL_MAX)?),
        None => None,
    };
    let stonewall = match from.given("stonewall") {
        Some(_) => Some(from.seconds("stonewall", STONEWALL_MAX)?),
        None => None,
    };
    if stonewall == Some(0.0) {
        return Err(from.wrong("stonewall", "no time is left for any request".into()));
    }
    match total {
        Some(total) if request > total => {
            return Err(from.wrong("request", format!("{request} bytes are more than the total of {total}")));
        }
        Some(total) if request * processes > total => {
            let least = request * processes;
            let what =
                format!("{total} bytes are too few for a request of each process, which takes {least}");
            return Err(from.wrong("total", what));
        }
        None if stonewall.is_none() => {
            return Err(ExploreError::at(
                from.place,
                "neither `total` nor `stonewall` is given: it would never end",
            ));
        }
        _ => {}
    }
    let read_share = match (from.given("read_share"), operation) {
        (Some(_), Operation::Mixed) => Some(from.share("read_share")?),
        (None, Operation::Mixed) => return Err(from.wrong("read_share", "is missing: half is 0.5".into())),
        (Some(_), _) => return Err(from.wrong("read_share", "only a mixed phase has one".into())),
        (None, _) => None,
    };
    let direct = from.flag("direct")?;
    if direct && request % SECTOR != 0 {
        let what = format!("{request} is no multiple of {SECTOR}, which O_DIRECT needs");
        return Err(from.wrong("request", what));
    }
    Ok(Phase {
        operation,
        layout: from.word("layout", &[("own", Layout::Own), ("shared", Layout::Shared)])?,
        spatiality: from.word(
            "spatiality",
            &[
                ("contiguous", Spatiality::Contiguous),
                ("strided", Spatiality::Strided),
                ("random", Spatiality::Random),
            ],
        )?,
        request,
        total,
        stonewall,
        read_share,
        direct,
        fsync: from.flag("fsync")?,
        think: match from.given("think") {
            Some(_) => from.seconds("think", THINK_MAX)?,
            None => 0.0,
        },
    })
}

/// An object of the file, and where it is.
struct Object<'a> {
    fields: &'a Map<String, Value>,
    place: &'a str,
}

impl<'a> Object<'a> {
    fn of(value: &'a Value, place: &'a str) -> Result<Object<'a>> {
        match value {
            Value::Object(fields) => Ok(Object { fields, place }),
            other => {
                let place = if place.is_empty() { "the file" } else { place };
                Err(ExploreError::at(place, format!("is {}, and should be an object", kind(other))))
            }
        }
    }

    fn path(&self, field: &str) -> String {
        if self.place.is_empty() { field.to_owned() } else { format!("{}.{field}", self.place) }
    }

    fn wrong(&self, field: &str, what: String) -> ExploreError {
        ExploreError::at(self.path(field), what)
    }

    /// A field, if it is there and not null.
    fn given(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn needed(&self, field: &str) -> Result<&'a Value> {
        self.given(field).ok_or_else(|| self.wrong(field, "is missing".into()))
    }

    fn knows(&self, known: &[&str]) -> Result<()> {
        match self.fields.keys().find(|field| !known.contains(&field.as_str())) {
            Some(field) => Err(self.wrong(field, format!("is not known; there are {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    fn list(&self, field: &str) -> Result<&'a [Value]> {
        match self.needed(field)? {
            Value::Array(list) if list.is_empty() => Err(self.wrong(field, "is empty".into())),
            Value::Array(list) => Ok(list),
            other => Err(self.wrong(field, format!("is {}, and should be a list", kind(other)))),
        }
    }

    fn text(&self, field: &str) -> Result<&'a str> {
        match self.needed(field)? {
            Value::String(text) => Ok(text),
            other => Err(self.wrong(field, format!("is {}, and should be a text", kind(other)))),
        }
    }

    fn word<T: Copy>(&self, field: &str, words: &[(&str, T)]) -> Result<T> {
        let given = self.text(field)?;
        words.iter().find(|(word, _)| *word == given).map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(field, format!("{given:?} is none of {}", words.join(", ")))
        })
    }

    fn number(&self, field: &str, least: u64, most: u64) -> Result<u64> {
        let given = self.needed(field)?;
        given
            .as_u64()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.wrong(field, format!("{given} is no whole number from {least} to {most}")))
    }

    fn seconds(&self, field: &str, most: f64) -> Result<f64> {
        let given = self.needed(field)?;
        given
            .as_f64()
            .filter(|seconds| (0.0..=most).contains(seconds))
            .ok_or_else(|| self.wrong(field, format!("{given} is no number of seconds from 0 to {most}")))
    }

    fn share(&self, field: &str) -> Result<f64> {
        let given = self.needed(field)?;
        given
            .as_f64()
            .filter(|share| (0.0..=1.0).contains(share))
            .ok_or_else(|| self.wrong(field, format!("{given} is no share from 0 to 1")))
    }

    /// A flag; `false` if it is not given.
    fn flag(&self, field: &str) -> Result<bool> {
        match self.given(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong(field, format!("is {}, and should be true or false", kind(other)))),
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
