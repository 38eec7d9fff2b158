"""Time, memory and mutual information of Brown clustering, beside the C++ program (Liang's wcluster).

    python scripts/bench/clustering.py [--wikitext2] [--output results/bench/clustering.json]

Each case runs in a fresh process on one thread. The text is read from the folder PPLSEQ_DATA, else ../shared/data
beside the repository. The figures of the C++ program were measured once, on another machine: they are cited, not run
again. Where published clusters of the text are at hand, their mutual information is given too.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TEXTS = {"ptb": "ptb/ptb.train.txt", "wikitext2": "wikitext2/wiki.train.tokens"}
MEASURED = [f"pplseq/data/{name}.py" for name in ("brown", "clusters", "clustering", "exchange")] + [__file__]
CPP = "wcluster (C++), another machine"
# Name -> text, whether <eos> ends each line, options of brown_clusters, figures promised, figures of the C++ program.
CASES = {
    "ptb, 128 blocks": {
        "text": "ptb", "eos": False, "options": {"num_clusters": 128},
        "published": "brown_published/ptb_c128.paths",
        "promised": {"mutual_information": 1.330, "cpu_seconds": 22, "peak_megabytes": 500},
        "reference": {"program": CPP, "mutual_information": 1.33502, "cpu_seconds": 11.0, "peak_megabytes": 18.6},
    },
    "ptb, 128 blocks, 3 exchange passes": {
        "text": "ptb", "eos": False, "options": {"num_clusters": 128, "exchange_passes": 3},
    },
    "ptb, 64 blocks": {
        "text": "ptb", "eos": False, "options": {"num_clusters": 64},
        "reference": {"program": CPP, "mutual_information": 1.06470},
    },
    "ptb, 256 blocks": {
        "text": "ptb", "eos": False, "options": {"num_clusters": 256},
        "reference": {"program": CPP, "mutual_information": 1.58715, "wall_seconds": 37},
    },
    "ptb with <eos>, 128 blocks": {
        "text": "ptb", "eos": True, "options": {"num_clusters": 128},
        "published": "brown_published/ptb_eos_c128.paths",
        "reference": {"program": CPP, "mutual_information": 1.38545},
    },
    "ptb with <eos> in its own block, 128 blocks": {
        "text": "ptb", "eos": True, "options": {"num_clusters": 128, "own_block": ["<eos>"]},
    },
    "wikitext2 with <eos>, 128 blocks": {
        "text": "wikitext2", "eos": True, "options": {"num_clusters": 128},
        "published": "brown_published/wikitext2_eos_c128.paths",
        "promised": {"mutual_information": 1.59},
        "reference": {"program": CPP, "mutual_information": 1.59610, "wall_seconds": 30.5},
    },
    "wikitext2 with <eos>, 128 blocks, 3 exchange passes": {
        "text": "wikitext2", "eos": True, "options": {"num_clusters": 128, "exchange_passes": 3},
    },
}  # fmt: skip


def measure(name: str, folder: Path) -> dict:
    """Run one case in this process."""
    import numpy as np

    from pplseq.data import Vocabulary, brown_clusters
    from pplseq.data.clustering import average_mutual_information, read_paths

    case = CASES[name]
    index, ids = {}, []
    with open(folder / TEXTS[case["text"]], encoding="utf-8") as file:
        for line in file:
            ids += [index.setdefault(word, len(index)) for word in line.split() + ["<eos>"] * case["eos"]]
    tokens, vocabulary = np.array(ids), Vocabulary(tuple(index))
    options = dict(case["options"])
    options["own_block"] = [index[word] for word in options.get("own_block", [])]
    wall, cpu = time.perf_counter(), time.process_time()
    clusters = brown_clusters(tokens, len(vocabulary), **options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    result = {
        "tokens": len(tokens),
        "words": len(vocabulary),
        "mutual_information": round(average_mutual_information(tokens, clusters.block_of_word), 5),
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "cpu_seconds_with_start_and_reading": round(time.process_time(), 2),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "block_sizes": [int(clusters.sizes.min()), int(clusters.sizes.max())],
    }
    if "published" in case and (folder / case["published"]).exists():
        published = read_paths(folder / case["published"], vocabulary)
        result["published_mutual_information"] = round(average_mutual_information(tokens, published.block_of_word), 5)
    return result


def kept_promises(result: dict, promised: dict) -> bool:
    more_is_better = {"mutual_information"}
    return all(
        result[key] >= bound if key in more_is_better else result[key] <= bound for key, bound in promised.items()
    )


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


def machine() -> dict:
    import numpy

    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        processor = names[0].split(":")[1].strip() if names else processor
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads_used": 1,
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wikitext2", action="store_true", help="also run WikiText-2")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "results" / "bench" / "clustering.json")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)  # one case, in a process of its own
    arguments = parser.parse_args()
    folder = Path(os.environ.get("PPLSEQ_DATA", REPOSITORY.parent / "shared" / "data"))
    if arguments.case:
        print(json.dumps(measure(arguments.case, folder)))
        return 0
    if not folder.is_dir():
        print(f"no corpora at {folder}; set PPLSEQ_DATA to their folder", file=sys.stderr)
        return 2

    results, red = {}, False
    for name, case in CASES.items():
        if case["text"] == "wikitext2" and not arguments.wikitext2:
            continue
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        child = subprocess.run(
            [sys.executable, __file__, "--case", name], env=one_thread, stdout=subprocess.PIPE, text=True, check=True
        )
        result = json.loads(child.stdout)
        results[name] = {"options": case["options"], **result}
        for key in ("reference", "promised"):
            if key in case:
                results[name][key] = case[key]
        verdict = ""
        if "promised" in case:
            results[name]["promises_kept"] = kept_promises(result, case["promised"])
            verdict = "" if results[name]["promises_kept"] else "  PROMISE BROKEN"
            red |= bool(verdict)
        print(
            f"{name:55s} {result['mutual_information']:.5f} bits {result['cpu_seconds']:6.2f} s of CPU "
            f"{result['peak_megabytes']:6.1f} MB{verdict}"
        )
    report = {
        "what": "Brown clustering (pplseq.data.brown_clusters): average mutual information in bits, CPU seconds of one "
        "core, peak resident memory of the whole process",
        "machine": machine(),
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", *MEASURED)),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "results": results,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    return int(red)


if __name__ == "__main__":
    sys.exit(main())
