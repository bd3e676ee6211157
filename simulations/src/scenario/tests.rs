use super::*;

const SMALL: &str = "title = \"t\"\n[[nodes]]\nname = \"a\"\n";

#[test]
fn what_is_written_is_read_again() {
    let text = r#"
        title = "everything"
        promise = "survive"
        assert = ["tokens > 0"]
        world.discovery = "seeds"
        world.seeds = ["a"]
        [[nodes]]
        name = "a"
        [[nodes]]
        name = "b"
        count = 2
        memory_gb = 8.5
        [[cables]]
        between = ["a", "b1"]
        kind = "rdma"
        delay_us = 5
        mbit_s = 40000
        [[faults]]
        at_ms = 5
        partition = [["a"], ["b1", "b2"]]
        [[faults]]
        at_ms = 6
        crash = "b2"
        for_ms = 10
        [random_faults]
        crashes_per_min = 1.5
    "#;
    let scenario = Scenario::parse(text).expect("a scenario");
    assert_eq!(scenario.machines().iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>(), ["a", "b1", "b2"]);
    assert_eq!(Scenario::parse(&scenario.to_toml()), Ok(scenario));
}

#[test]
fn mistakes_are_named_with_what_would_be_right() {
    let cases = [
        ("colour = 3\n", "unknown field `colour`"),
        ("[[faults]]\nat_ms = 1\n", "no kind"),
        ("[[faults]]\nat_ms = 1\ncrash = \"a\"\nfreeze = \"a\"\n", "one kind each, not crash and freeze"),
        ("[[faults]]\nat_ms = 1\ncrash = \"z\"\n", "there is no node \"z\": there are a"),
        ("[[faults]]\nat_ms = 1\nslow = \"a\"\n", "slow needs factor"),
        ("[links]\nloss = 1.5\n", "loss is a probability"),
        ("[traffic]\nanswer = [9, 3]\n", "answer = [least, most]"),
        ("[traffic]\nanswer = [9, 3000]\n", "do not fit the model's context"),
        ("[[nodes]]\nname = \"a\"\n", "two nodes are called a"),
        ("[[nodes]]\nname = \"b\"\ncount = 100000\n", "1 to 256 nodes"),
    ];
    for (more, due) in cases {
        let text = if more.starts_with('[') { format!("{SMALL}{more}") } else { format!("{more}{SMALL}") };
        let why = Scenario::parse(&text).expect_err(more).why;
        assert!(why.contains(due), "{more:?} gives {why:?}");
    }
    let why = Scenario::parse(&format!("{SMALL}memory_gb = \"much\"\n")).expect_err("no number").why;
    assert!(why.contains("line 4"), "{why}");
    assert!(Scenario::parse(&format!("assert = [\"longest_gap < 3\"]\n{SMALL}")).is_err());
}
