//! A run as one page: a [`Page`] put into HTML that needs nothing but itself (no network, no other file).
//!
//! The page is `assets/report.html`; its script draws the lanes from the data. Names and texts come from scenario files and
//! error messages, so they are data, never markup: they are set as text by the script, and no `<` reaches the page's source.

pub mod page;

use page::Page;

const PAGE: &str = include_str!("../assets/report.html");
/// Where the data goes, once in the page.
const PLACE: &str = "\"TIMELINE\"";

/// The page for a run.
///
/// # Panics
/// Never: a page has no maps and no non-finite numbers, so it is always JSON.
#[must_use]
pub fn html(page: &Page) -> String {
    let data = serde_json::to_string(page).expect("a page is plain data");
    // Inside a script element only `<` could end it; in JSON it stands in strings only, where this means the same.
    PAGE.replacen(PLACE, &data.replace('<', "\\u003c"), 1)
}

#[cfg(test)]
mod tests {
    use super::{PAGE, PLACE, html};
    use crate::report::page::{Page, Sentence, SentenceKind};

    #[test]
    fn texts_cannot_leave_the_data() {
        let sentence = Sentence { at_ms: 1.0, kind: SentenceKind::Mesh, text: "</script><img src=x onerror=alert(1)>".into() };
        let page = html(&Page { title: "<b>\"TIMELINE\"</b>".into(), story: vec![sentence], ..Page::default() });
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
        assert!(!page.contains("<img") && page.contains("\\u003cimg src=x"));
        let data = page.split("const page = ").nth(1).and_then(|rest| rest.split(";\n").next()).expect("the data's line");
        let read: serde_json::Value = serde_json::from_str(data).expect("it is JSON");
        assert_eq!(read["story"][0]["text"], "</script><img src=x onerror=alert(1)>");
        assert_eq!(read["title"], "<b>\"TIMELINE\"</b>");
    }

    #[test]
    fn the_page_needs_nothing_but_itself() {
        assert_eq!(PAGE.matches(PLACE).count(), 1);
        for foreign in ["src=", "href=", "@import", "url(", "fetch(", "http://", "https://"] {
            let found = PAGE.match_indices(foreign).filter(|(at, _)| !PAGE[*at..].starts_with("http://www.w3.org/2000/svg")).count();
            assert_eq!(found, 0, "{foreign} in the page");
        }
    }
}
