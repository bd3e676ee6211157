//! `strftime_now` of chat templates: today's date in a format of C's. In UTC, since a node's own zone is no business of a model's.

use std::fmt::Write as _;

const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment, taken apart.
struct Moment {
    year: i64,
    month: u32,
    day: u32,
    /// Sunday is 0.
    weekday: usize,
    /// The first of January is 1.
    day_of_year: i64,
    hour: u64,
    minute: u64,
    second: u64,
}

/// The moment `unix_seconds` in a `strftime` format. Directives that are not known stay as they are.
pub(super) fn strftime(format: &str, unix_seconds: u64) -> String {
    let moment = Moment::new(unix_seconds);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match rest.next() {
            Some('-') => {
                let mut padded = String::new();
                moment.write(&mut padded, rest.next().unwrap_or('%'));
                let trimmed = padded.trim_start_matches(['0', ' ']);
                out.push_str(if trimmed.is_empty() && !padded.is_empty() { "0" } else { trimmed });
            }
            Some(directive) => moment.write(&mut out, directive),
            None => out.push('%'),
        }
    }
    out
}

impl Moment {
    fn new(unix_seconds: u64) -> Self {
        let days = i64::try_from(unix_seconds / 86_400).unwrap_or(0);
        let (year, month, day) = civil_from_days(days);
        Self {
            year,
            month,
            day,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0), // 1 January 1970 was a Thursday
            day_of_year: days - days_from_civil(year, 1, 1) + 1,
            hour: unix_seconds / 3_600 % 24,
            minute: unix_seconds / 60 % 60,
            second: unix_seconds % 60,
        }
    }

    fn write(&self, out: &mut String, directive: char) {
        let month = MONTHS[self.month as usize - 1];
        let hour12 = if self.hour.is_multiple_of(12) { 12 } else { self.hour % 12 };
        _ = match directive {
            'Y' => write!(out, "{}", self.year),
            'y' => write!(out, "{:02}", self.year % 100),
            'm' => write!(out, "{:02}", self.month),
            'd' => write!(out, "{:02}", self.day),
            'e' => write!(out, "{:2}", self.day),
            'B' => write!(out, "{month}"),
            'b' | 'h' => write!(out, "{}", &month[..3]),
            'A' => write!(out, "{}", DAYS[self.weekday]),
            'a' => write!(out, "{}", &DAYS[self.weekday][..3]),
            'w' => write!(out, "{}", self.weekday),
            'j' => write!(out, "{:03}", self.day_of_year),
            'H' => write!(out, "{:02}", self.hour),
            'I' => write!(out, "{hour12:02}"),
            'M' => write!(out, "{:02}", self.minute),
            'S' => write!(out, "{:02}", self.second),
            'p' => write!(out, "{}", if self.hour < 12 { "AM" } else { "PM" }),
            'Z' => write!(out, "UTC"),
            'z' => write!(out, "+0000"),
            'F' => write!(out, "{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => write!(out, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            'D' => write!(out, "{:02}/{:02}/{:02}", self.month, self.day, self.year % 100),
            '%' => write!(out, "%"),
            other => write!(out, "%{other}"),
        };
    }
}

/// Year, month and day of a day counted from 1 January 1970 (Hinnant, "chrono-compatible low-level date algorithms": years begin
/// in March, so that the leap day is a year's last).
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468; // from 1 March of the year 0
    let era = shifted.div_euclid(146_097); // 400 years
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, u32::try_from(month).unwrap_or(1), u32::try_from(day).unwrap_or(1))
}

/// The inverse of [`civil_from_days`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_templates_in_use() {
        let moment = 1_709_208_307; // 2024-02-29 12:05:07
        assert_eq!(strftime("%d %b %Y", moment), "29 Feb 2024");
        assert_eq!(strftime("%B %d, %Y; %A %a %j %y", moment), "February 29, 2024; Thursday Thu 060 24");
        assert_eq!(
            strftime("%Y-%m-%d %H:%M:%S %I %p|%F %T|%-m/%-d|100%%|%Q|%", moment),
            "2024-02-29 12:05:07 12 PM|2024-02-29 12:05:07|2/29|100%|%Q|%"
        );
        assert_eq!(strftime("%F %a %-H", 0), "1970-01-01 Thu 0");
        assert_eq!(strftime("%F", 951_782_400), "2000-02-29");
    }

    #[test]
    fn every_day_of_four_centuries_goes_there_and_back() {
        for days in 0..146_097 {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month.into(), day.into()), days);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day));
        }
    }
}
