"""The command line: every method, every way in, and every way that the output can break."""

import configparser
import contextlib
import gzip
import importlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fedrecsk
from fedrecsk import cli
from fedrecsk.__main__ import main
from fedrecsk.cli import _job

ROWS = [(u, i, 1 + (7 * u + 3 * i) % 5) for u in range(30) for i in range(12) if (u + i) % 4]


@pytest.fixture
def ratings(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("user,item,rating\n" + "".join(f"u{u},{i},{r}\n" for u, i, r in ROWS))
    return str(path)


@pytest.fixture
def implicit(tmp_path):
    path = tmp_path / "implicit.csv.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d\t%d\n" % row[:2] for row in ROWS)))
    return str(path)


def python(*arguments, **options):
    command = [sys.executable, "-m", "fedrecsk", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_the_main_job_runs_offline(capsys):
    assert main(["--rounds", "5", "--n-jobs", "1"]) == 0
    out = capsys.readouterr().out
    for words in (
        "Data: generated, 100,000 ratings of 1,682 items by 943 users",
        "RMSE",
        "FedEB recommends to user",
        "in 5 rounds with 943 clients",
        "sums of uploads in plaintext. Without noise, epsilon is infinite",
    ):
        assert words in out
    table = out.split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in table[2:]] == ["BiasOnly", "SVDpp", "RFRec", "FedEB"]
    assert len({len(line) for line in table}) == 1, "columns are aligned"


def test_central_privacy(ratings, capsys):
    main(["--data", ratings, "--rounds", "2", "--epsilon", "8"])
    out = capsys.readouterr().out
    assert "PrivFedEB      federated" in out
    assert (
        "Epsilon is 8 for all the data of one client, with delta 1e-05, over 3 uploads, if" in out
    )


def test_local_privacy_and_a_file(ratings, capsys):
    main(["--data", ratings, "--rounds", "5", "--scale", "0.04"])
    out = capsys.readouterr().out
    assert "with Laplace noise. Epsilon is 10 for one coordinate of one upload" in out
    assert "and 12,000 in total: 1,200 coordinates in 5 uploads" in out
    # It sends to holders by default.
    main(["--data", ratings, "--rounds", "2", "--scale", "0.04", "--method", "RFRecF"])
    assert "RFRecF         federated" in capsys.readouterr().out


def test_ranking_methods_on_implicit_feedback_and_above_a_threshold(ratings, implicit, capsys):
    few = ["--method", "LocALS", "--rounds", "2", "--set", "n_factors=4"]
    main(["--data", implicit, *few])
    shown = "270 interactions of 12 items by 30 users; 20% of each user's rows"
    assert shown in capsys.readouterr().out
    main(["--data", ratings, *few, "--threshold", "4"])
    n_kept = sum(rating >= 4 for *_, rating in ROWS)
    assert f"{n_kept} interactions" in capsys.readouterr().out


# Of every kind: federated or not, ratings or rankings, with rounds, epochs or neither.
@pytest.mark.parametrize("name", ["RFRec", "LocALS", "FedEASE", "PMF", "ImplicitBPR", "Popularity"])
def test_methods_of_every_kind(name, ratings, capsys):
    known = getattr(fedrecsk, name)().get_params()
    few = ["--rounds", "2"] if {"n_rounds", "n_epochs", "n_samples"} & known.keys() else []
    main(["--data", ratings, "--method", name.lower(), *few, "--n-jobs", "1"])
    out = capsys.readouterr().out
    rating = cli.predicts_ratings(getattr(fedrecsk, name))
    reference = "BiasOnly" if rating else "Popularity"
    rows = [line.split()[0] for line in out.split("\n\n")[1].splitlines()[2:]]
    assert rows[-1] == name
    assert reference in rows
    assert ("RMSE" if rating else "precision@10") in out
    assert (f"{name} recommends to user u") in out
    assert ("Communication: " in out) == ("federation" in known)


def test_list_and_version(capsys):
    main(["--list"])
    out = capsys.readouterr().out
    assert {f"  {name} " in out for name in cli.method_names()} == {True}
    for title in ("Ratings, federated", "Ranking (implicit feedback), centralised"):
        assert title in out
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"fedrecsk {fedrecsk.__version__}\n"
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    for words in ("data:", "method:", "differential privacy:", "examples:", "--list  "):
        assert words in out


@pytest.mark.full
def test_compilation_is_noted_once(ratings, tmp_path):
    # It and SVDpp, with which it is compared, compile fast.
    arguments = "--data", ratings, "--method", "PMF", "--rounds", "1"
    where = {"env": os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}}
    for expected in (1, 0):
        with python(*arguments, **where) as process:
            out, errors = process.communicate()
        assert out.count("Compiling numerical code.") == expected
        assert errors == ""


@pytest.mark.full
def test_help_needs_no_compiler():
    code = (
        "import sys; from fedrecsk.__main__ import main\n"
        "for option in ('--help', '--version', '--list'):\n"
        "    try: main([option])\n"
        "    except SystemExit: pass\n"
        "assert not {'numba', 'implicit', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_console_script_is_there():
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    script = config["options.entry_points"]["console_scripts"].strip()
    assert script == "fedrecsk = fedrecsk.cli:main"
    assert importlib.import_module("fedrecsk.cli").main is main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nosuch.csv"], "no such file, nor one of generated, 100k"),
        (["--data", "{ratings}", "--data-home", "{ratings}", "--data", "100k"], "is a file, not"),
        (["--data", "{implicit}"], "has no ratings; take a ranking method"),
        (["--data", "{implicit}", "--method", "locals", "--threshold", "4"], "no ratings that"),
        (["--data", "{ratings}", "--method", "locals", "--threshold", "6"], "most is 5"),
        (["--threshold", "4"], "--threshold is for ranking methods"),
        (["--rounds", "5", "--method", "BiasOnly"], "BiasOnly has no rounds"),
        (["--n-jobs", "0"], "-1 for all cores"),
        (["--seed", "-1"], "--seed: -1 is not a number from 0 to 4294967295"),
        (["--scale", "nan"], "--scale: nan must be positive and finite"),
        (["--clip", "1"], "give --epsilon or --scale too"),
        (["--epsilon", "1", "--method", "SVDpp"], "SVDpp is centralised"),
        (["--epsilon", "1", "--method", "FedEB"], "take PrivFedEB"),
        (["--epsilon", "1", "--method", "LocALS"], 'set upload="all"'),
        (["--scale", "1", "--method", "FedEB"], "FedEB has no local differential privacy"),
        (["--scale", "1", "--method", "LocALS", "--data", "{ratings}"], "LocALS has no local_dp"),
        (["--method", "rfrce"], "did you mean RFRec"),
        (["--method", "xyz"], "there is no method 'xyz'; --list shows all"),
        (["--method", "fedncf"], "use fedrecsk.neural.FedNCF in Python"),
        (["--data", ""], "--data is empty; name one, or leave it out"),
        (["--set", "n_rounds=3", "--set", "n_rounds=4"], "--set n_rounds=... is given twice"),
        (["--set", "n_factors"], "write NAME=VALUE"),
        (["--set", "n_rounds=3", "--rounds", "1"], "--rounds 1 and --set n_rounds=...: give one"),
        (["--set", "factors=4"], "FedEB has no parameter 'factors'; did you mean n_factors"),
        (["--set", "n_factors=four"], "'n_factors' parameter of FedEB must be an int"),
        (["--columns", "user=a,user=b"], "'user=b': the user has a column already"),
        (["--columns", "users=a"], "'users=a' is none of user=..., item=..."),
        (["--columns", "user=a,item=b"], "--columns is for a file of yours"),
        (["--read", "sep=;"], "--read is for a file of yours"),
        (["--read", "quote=False"], "--read quote: did you mean quoted?"),
        (["{ratings}", "--data", "100k"], "give one of them"),
        (["--data", "{few}"], "too few rows with a rating: 1; 10 are needed"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, ratings, implicit, tmp_path, capsys):
    files = {"ratings": ratings, "implicit": implicit, "few": tmp_path / "few.csv"}
    files["few"].write_text("user,item,rating\n1,2,3\n")
    with pytest.raises(SystemExit, match="2"):
        main([one.format(**files) for one in arguments])
    assert message in capsys.readouterr().err


def test_columns_of_a_file(tmp_path, capsys):
    path = tmp_path / "shop.csv"
    path.write_text("klant;artikel;cijfer\n" + "".join(f"{u};{i};{r}\n" for u, i, r in ROWS))
    with pytest.raises(SystemExit, match="2"):
        main(["--data", str(path)])
    assert "Say which it is: --columns user=...,item=...." in capsys.readouterr().err
    columns = "user=klant,item=artikel,rating=cijfer"
    main(["--data", str(path), "--columns", columns, "--method", "BiasOnly"])
    assert "270 ratings of 12 items by 30 users" in capsys.readouterr().out


def test_warnings_are_notes(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    path.write_text("user,item,rating,price\n" + "".join(f"{u},{i},{r},9\n" for u, i, r in ROWS))
    main(["--data", str(path), "--rounds", "2"])
    err = capsys.readouterr().err
    assert err.startswith("Note: ")
    assert "prices.csv: column 'price' is not read" in err
    assert "--columns user=...,item=...,rating=...,timestamp=..." in err
    assert "UserWarning" not in err


def test_a_file_is_read_as_told(ratings, tmp_path, capsys):
    path = tmp_path / "excel.csv"
    path.write_text("sep=,\n" + Path(ratings).read_text().replace("\n", ' "\n'))
    with pytest.raises(SystemExit, match="2"):
        main([str(path)])
    err = capsys.readouterr().err
    assert "pass --read comment='sep='." in err
    assert "--read quoted=False if" in err
    path.write_text("sep=,\n" + Path(ratings).read_text())
    main(
        [str(path), "--read", "comment=sep=", "--columns", "rating=None", "--method", "Popularity"]
    )
    assert "Data: excel.csv, 270 interactions of 12 items" in capsys.readouterr().out


def test_what_is_not_rated_is_said_once_and_is_no_positive(tmp_path, capsys):
    path = tmp_path / "books.csv"
    rows = (f"{u},{i},{0 if i % 2 else r}\n" for u, i, r in ROWS)
    path.write_text("user,item,rating\n" + "".join(rows))
    main([str(path), "--rounds", "2"])
    err = capsys.readouterr().err
    assert err.count("% of the ratings are 0; ") == err.count("Note: ") == 1
    main([str(path), "--method", "Popularity"])
    out, err = capsys.readouterr()
    assert "135 interactions of 6 items" in out
    assert "Note: 50% of the rows have a rating of 0 or less and are left out." in err


def test_standard_input(ratings, capsys, monkeypatch):
    with open(ratings) as file:
        monkeypatch.setattr(sys, "stdin", file)
        main(["--data", "-", "--rounds", "2"])
    assert "Data: stdin, 270 ratings" in capsys.readouterr().out
    with open(os.devnull) as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(SystemExit):
            main(["--data", "-"])
    assert "--data -: stdin is empty" in capsys.readouterr().err


def test_a_named_pipe(ratings, tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=[Path(ratings).read_text()])
    writer.start()
    main(["--data", str(pipe), "--rounds", "2"])
    writer.join()
    assert "Data: pipe, 270 ratings" in capsys.readouterr().out


@pytest.mark.full
def test_a_reader_that_leaves_early(ratings):
    with python("--data", ratings, "--rounds", "2") as process:
        assert process.stdout.readline().startswith("Data: ratings.csv")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.full
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fedrecsk", "--list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("fedrecsk: the output cannot be written: ")
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_letters_that_the_terminal_lacks(tmp_path, monkeypatch):
    path = tmp_path / "films.csv"
    path.write_text("".join(f"ü{u},film {i},{r}\n" for u, i, r in ROWS), encoding="utf-8")
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        main(["--data", str(path), "--rounds", "2"])
        assert rb"user \xfc" in out.buffer.getvalue()


@pytest.mark.full
def test_an_interrupt(ratings):
    with python("--data", ratings, "--rounds", "1000000") as process:
        process.stdout.readline()
        time.sleep(0.2)
        # llvmlite ignores one that comes while it loads code, and says so.
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
                break
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.endswith("Interrupted.\n")


def test_bars_on_a_terminal_and_then_the_table(ratings, capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(_job, "shows_progress", lambda: True)
    main(["--data", ratings, "--rounds", "2"])
    out = capsys.readouterr().out
    assert "FedEB - fit" in out
    assert out.index("FedEB - fit") < out.index("RMSE") < out.index("FedEB recommends")
