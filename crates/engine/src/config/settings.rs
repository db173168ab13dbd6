//! The settings that users have: what is worth changing for a program, a machine or its devices.

use super::baselines::BASELINES;
use super::table::{self, BadSetting, Form, Setting, setting};
use super::{
    CompressedMax, Config, FolioMax, OomWait, OutOfRoom, ReclaimMax, Recompress, TierCodec,
    Watermarks, WayOut,
};
use crate::fault::folio::parse_pages;
use crate::units::Bytes;

const WAY_OUT: Form<WayOut> =
    Form::Words(&[("auto", WayOut::Auto), ("move", WayOut::Move), ("drop", WayOut::Drop)]);
const WORKERS: Form<Option<u8>> = Form::Text {
    values: &["auto", "1..16"],
    parse: |text| match text {
        "auto" => Some(None),
        _ => text.parse().ok().filter(|workers| (1..=16).contains(workers)).map(Some),
    },
    show: |workers| workers.map_or("auto".to_owned(), |workers| workers.to_string()),
};
const RECLAIM_MAX: Form<ReclaimMax> = Form::text(&["auto", "1..1024", "off"]);
const WATERMARK: Form<Watermarks> = Form::text(&["auto", "MIN/LOW/HIGH"]);
const OUT_OF_ROOM: Form<OutOfRoom> =
    Form::Words(&[("sigbus", OutOfRoom::Sigbus), ("kill", OutOfRoom::Kill)]);
const OOM_WAIT: Form<OomWait> = Form::text(&["TIME"]);
const FOLIO: Form<FolioMax> = Form::text(&["auto", "1", "2", "4", "8", "16", "32", "64"]);
const READAHEAD: Form<usize> = Form::Text {
    values: &["1", "2", "4", "8", "16", "32", "64"],
    parse: parse_pages,
    show: ToString::to_string,
};
const COMPRESSED: Form<CompressedMax> = Form::text(&["auto", "0..90"]);
const CODEC: Form<TierCodec> = Form::text(&["auto", "lz4", "zstd[:LEVEL]", "none"]);
const RECOMPRESS: Form<Recompress> = Form::text(&["auto", "off", "zstd[:LEVEL]"]);
const INCOMPRESSIBLE: Form<bool> = Form::Words(&[("device", false), ("keep", true)]);
const WINDOW: Form<Option<Bytes>> = Form::Text {
    values: &["auto", "2M..8T"],
    parse: |text| {
        if text == "auto" {
            return Some(None);
        }
        let size = text.parse::<Bytes>().ok()?;
        let fits = size.0 >= EXTENT_BYTES && size <= Config::WINDOW_MAX;
        fits.then_some(Some(Bytes(size.0.next_multiple_of(EXTENT_BYTES))))
    },
    show: |size| size.map_or("auto".to_owned(), Bytes::exact),
};
/// The window is whole extents.
const EXTENT_BYTES: u64 = 2 << 20;

/// The settings: `--set KEY=VALUE` of `overspill run`, and [`Config::apply_settings`].
pub static SETTINGS: &[Setting<Config>] = &[
    setting!(
        "out",
        way_out,
        WAY_OUT,
        "How pages leave memory: they are moved, or protected, stored and dropped. `auto` takes \
         the cheaper way. `move` refuses pages that are pinned for DMA: it is for programs whose \
         DMA overspill does not see."
    ),
    setting!(
        "workers",
        workers,
        WORKERS,
        "How many threads store pages ahead of need. `auto` is one for four processors, up to \
         four."
    ),
    setting!(
        "reclaim.max",
        reclaim_max,
        RECLAIM_MAX,
        "How many threads at most reclaim for themselves at once, where faults are served by \
         signal. The others wait in line. `auto` is half of the processors, and two a NUMA node at \
         least; `off` is no bound."
    ),
    setting!(
        "watermark",
        watermarks,
        WATERMARK,
        "How much of the budget is kept free. Below MIN a thread that needs memory reclaims for \
         itself; the background thread reclaims from LOW up to HIGH. Each is a percentage such as \
         `2.5%`, a size, or `auto`: 1/64 of the budget (up to 8M), and 1/256 more each (up to \
         16M, more of small budgets)."
    ),
    setting!(
        "oom",
        oom,
        OUT_OF_ROOM,
        "What happens when there is no room and none to be had. With `kill` the largest \
         process of the job is killed, as its `oom_score_adj` counts, after a line that says what \
         was used. With `sigbus` the access fails."
    ),
    setting!(
        "oom.wait",
        oom_wait,
        OOM_WAIT,
        "How long reclaim may be fruitless before there is no room, up to 10s. Time in which a \
         device is written to counts an eighth."
    ),
    setting!(
        "folio",
        folio,
        FOLIO,
        "How many pages one fault brings in at most, where a program goes through memory in \
         sequence. `auto` is 16, and from devices up to 64, as far as buffers for that are no \
         more than 1/64 of what a process has of the budget."
    ),
    setting!(
        "readahead",
        readahead_max,
        READAHEAD,
        "How many pages at most are read from a device around one that is missing; more, \
         up to a folio, while half of what is there has room in memory. 1 turns readahead off."
    ),
    setting!(
        "compressed",
        compressed_max,
        COMPRESSED,
        "What percentage of the budget compressed pages may take; 0 compresses nothing. `auto` \
         begins with 75 and follows the pages that come back: fewer where few pages are hot, up \
         to 85 where that saves reads of devices, 90 where no device has room."
    ),
    setting!(
        "zswap.codec",
        zswap_codec,
        CODEC,
        "What compresses pages. `zstd` is denser and slower than `lz4`; its LEVEL is 1 to 19 or \
         -7 to -1, 3 unless named. `none` keeps pages as they are. `auto` is `lz4`, and `zstd:-1` \
         or `zstd:1` while that saves more in reads of devices than it costs."
    ),
    setting!(
        "zswap.recompress",
        zswap_recompress,
        RECOMPRESS,
        "Whether compressed pages that stay cold are compressed more densely. `auto` does so by \
         `zstd:1` when no device has room, which holds half as many pages more. `zstd` does so \
         always, before they go to a device."
    ),
    setting!(
        "zswap.incompressible",
        keeps_incompressible,
        INCOMPRESSIBLE,
        "Where pages go that do not compress: to a device, or among the compressed pages, as \
         they are. `keep` pays where the device is slow."
    ),
    setting!(
        "window",
        window,
        WINDOW,
        "How much address space is reserved for managed memory. `auto` is 2T in a job and 1T for a \
         pool of a library user's, 32 times the budget where the system promises only memory that \
         it has (`vm.overcommit_memory=2`), or what a limit of address space leaves (`ulimit -v`)."
    ),
];

impl Config {
    /// Applies a list of [`SETTINGS`] such as `out=move,folio=1`.
    ///
    /// # Errors
    /// For what is no setting, or not a value of it.
    pub fn apply_settings(&mut self, list: &str) -> Result<(), BadSetting> {
        table::apply(SETTINGS, "setting", self, list)
    }

    /// Applies a list that may name [baselines](BASELINES) beside settings, for benches and tests.
    ///
    /// # Errors
    /// For what is neither, or not a value of it.
    #[doc(hidden)]
    pub fn apply_with_baselines(&mut self, list: &str) -> Result<(), BadSetting> {
        for item in list.split(',') {
            let name = item.split('=').next().unwrap_or_default();
            match table::find(BASELINES, name) {
                Some(_) => self.baselines.apply(item)?,
                None => table::apply(SETTINGS, "setting or baseline", self, item)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::baselines::Baselines;
    use super::*;
    use crate::slot::SlotLock;
    use crate::workingset::settings::Clean;
    use overspill_os::codec::Codec;
    use proptest::prelude::*;

    #[test]
    fn each_word_is_parsed_and_shown_as_itself() {
        table::check(SETTINGS);
    }

    proptest! {
        /// Whatever is asked for is either refused with a sentence, or what is shown of it is the
        /// same once more.
        #[test]
        fn any_list_is_applied_or_refused(
            names in prop::collection::vec(
                (0..SETTINGS.len(), "[a-z0-9:./%+ -]{0,12}|[0-9]{1,4}(K|M|G|%|ms)?|auto|off"),
                0..4,
            ),
            noise in ".{0,12}",
        ) {
            let named = |(at, value): &(usize, String)| format!("{}={value}", SETTINGS[*at].name());
            let named: Vec<_> = names.iter().map(named).collect();
            for list in [named.join(","), noise] {
                let mut config = Config::default();
                if let Err(bad) = config.apply_settings(&list) {
                    prop_assert!(!bad.to_string().is_empty());
                    continue;
                }
                let shown = |config: &Config| -> Vec<String> {
                    let show = |one: &table::Setting<Config>| {
                        format!("{}={}", one.name(), one.show(config))
                    };
                    SETTINGS.iter().map(show).collect()
                };
                let mut again = Config::default();
                again.apply_settings(&shown(&config).join(",")).unwrap();
                prop_assert_eq!(shown(&config), shown(&again));
            }
        }
    }

    #[test]
    fn settings_apply_or_say_why() {
        let mut config = Config::default();
        config.apply_settings("out=move,folio=1,workers=3,compressed=0,window=3M").unwrap();
        assert_eq!((config.way_out, config.workers), (WayOut::Move, Some(3)));
        assert_eq!((config.folio, config.compressed_max), (FolioMax::Pages(1), CompressedMax::OFF));
        assert_eq!(config.window, Some(Bytes(4 << 20)));
        config.apply_settings("zswap.codec=zstd:9,zswap.recompress=zstd").unwrap();
        assert_eq!(config.zswap_codec, TierCodec::Always(Codec::Zstd(9)));
        assert_eq!(config.zswap_recompress, Recompress::Cold(Codec::ZSTD_LEVEL));
        let error = config.apply_settings("zswap.codec=lzo").unwrap_err().to_string();
        let expected = "setting zswap.codec cannot be 'lzo': it takes auto|lz4|zstd[:LEVEL]|none";
        assert_eq!(error, expected);
        for bad in [
            "out",
            "out=x",
            "nope=1",
            "folio=3",
            "folio=128",
            "readahead=0",
            "workers=17",
            "compressed=91",
            "zswap.recompress=lz4",
            "watermark=1%",
            "window=1",
            "window=9T",
        ] {
            assert!(config.apply_settings(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_may_name_both_but_users_have_settings_only() {
        let mut config = Config::default();
        config.apply_with_baselines("folio=1,slot.lock=device,,clean=off").unwrap();
        assert_eq!(config.folio, FolioMax::Pages(1));
        let Baselines { slot, clean, .. } = config.baselines;
        assert_eq!((slot.lock, clean), (SlotLock::Device, Clean::Off));
        let refused = |list: &str| Config::default().apply_settings(list).unwrap_err().to_string();
        for baseline in BASELINES {
            let error = refused(&format!("{}=on", baseline.name()));
            assert!(error.starts_with("there is no setting '"), "{error}");
            assert!(error.contains("choose one of out, workers, "), "{error}");
        }
        let error = config.apply_with_baselines("colour=red").unwrap_err().to_string();
        assert!(error.starts_with("there is no setting or baseline 'colour'"), "{error}");
        let error = Baselines::default().apply("folio=1").unwrap_err().to_string();
        assert!(error.starts_with("there is no baseline 'folio': choose one of in, "), "{error}");
        assert!(Baselines::default().apply("swapoff.run=257").is_err());
        assert!(Baselines::default().apply("swapoff.depth=0").is_err());
    }
}
