"""What is measured: ``protocol(model, data, seed, options)`` returns scores by metric."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from benchmarks import fedals as _fedals
from benchmarks import rfrec as _rfrec
from benchmarks.papers._among import scores_by_negatives
from benchmarks.papers._data import (
    leave_one_out_files,
    load,
    load_all,
    one_row_out,
    split_per_user,
)
from fedrecsk.metrics import evaluate_ranking

MOST_MESSAGES = 200
N_SILOS = 20
# Shares of the rounds after which a curve is read.
SHARES = (0.1, 0.2, 0.4, 0.7, 1.0)


def takes_ratings(model):
    """Whether the model is fitted to ratings rather than to positives."""
    by_parameter = getattr(model, "targets", "") == "ratings"
    return by_parameter or model.__sklearn_tags__().target_tags.required


def rating_errors(model, data, seed, options):
    """MAE and RMSE on a fifth of the rows, drawn at random."""
    X, y = load(data, options)
    X_train, y_train, X_test, y_test = _rfrec.split(X, y, seed)
    if model.get_params().get("federation__local_dp") is not None:
        # What is on offer is public; noise could not hide who is in it.
        model.set_params(items=np.unique(X[:, 1]))
    model.fit(X_train, y_train)
    predicted = model.predict(X_test)
    if not np.isfinite(predicted).all():
        # Finite vectors may be so long that their products are not.
        return dict.fromkeys(("MAE", "RMSE", "rounds"), float("nan"))
    return {
        "MAE": mean_absolute_error(y_test, predicted),
        "RMSE": root_mean_squared_error(y_test, predicted),
        "rounds": float(getattr(model, "n_rounds_", 0)),
    }


def messages_to_converge(model, data, seed, options):
    """Messages in either direction until a fit has converged, by two measures.

    RFRec's section 4.3: until the server's item matrix changes by at most 1% of its norm from one
    aggregation to the next (the paper does not say how little). And until the RMSE on test rows
    is within 1% of its best among the first 200 messages, after which the paper stops.
    """
    X_train, y_train, X_test, y_test = _rfrec.split(*load(data, options), seed)
    most = MOST_MESSAGES // (10 if options.quick else 1)
    before, n_sent, sent, changes, errors = None, 0, [], [np.inf], []
    for n in range(1, model.n_rounds + 1):
        model.set_params(n_rounds=n, warm_start=True).fit(X_train, y_train)
        entry = [one for one in model.communication_.entries if one["phase"] == "round"][-1]
        n_sent += (entry["messages_down"] > 0) + (entry["messages_up"] > 0)
        if n_sent > most:
            break
        if entry["messages_up"] == 0:
            continue
        items = _item_matrix(model)
        if before is not None:
            changes.append(np.linalg.norm(items - before) / np.linalg.norm(before))
        errors.append(root_mean_squared_error(y_test, model.predict(X_test)))
        sent.append(n_sent)
        before = items
    settled = np.array(errors) <= 1.01 * min(errors)
    still = np.array(changes) <= 0.01
    stop = sent[still.argmax()] if still.any() else most
    return {"paper's criterion": float(stop), "RMSE within 1%": float(sent[settled.argmax()])}


def _item_matrix(model):
    """Items' vectors, with their biases if the model has them."""
    bias = getattr(model, "item_bias_", None)
    return model.item_factors_ if bias is None else np.column_stack([bias, model.item_factors_])


def leave_one_out(model, data, seed, options):
    """HR@10 and NDCG@10 of a row of each user among 99 negatives.

    ML-1M: each user's last row and the negatives of the usual file; else a random row and
    negatives drawn with the seed.
    """
    train, ratings, test, among = _one_out(data, seed, options)
    model.fit(train, ratings if takes_ratings(model) else None)
    return _hits(model, test, among)


def leave_one_out_by_round(model, data, seed, options):
    """The same after some shares of the rounds."""
    train, ratings, test, among = _one_out(data, seed, options)
    found, n_rounds = {}, model.n_rounds
    for share in SHARES:
        model.set_params(n_rounds=max(1, round(share * n_rounds)), warm_start=True)
        model.fit(train, ratings if takes_ratings(model) else None)
        found[f"HR@10 after {share:.0%} of the rounds"] = _hits(model, test, among)["HR@10"]
    return found


def _one_out(data, seed, options):
    if data == "1m":
        train, ratings, test, negatives = leave_one_out_files(options)
        return train, ratings, test, {"negatives": negatives}
    train, ratings, test = one_row_out(*load(data, options), seed)
    return train, ratings, test, {"n_negatives": 99, "random_state": seed}


def _hits(model, test, among):
    scores = evaluate_ranking(model, test, metrics=("hit_rate", "ndcg"), k=10, **among)
    return {"HR@10": scores["hit_rate@10"], "NDCG@10": scores["ndcg@10"]}


def last_tenth_by_time(model, data, seed, options):
    """LightFR's protocol: per user, in order of time, 80/10/10, by the number of negatives."""
    return _last_tenth(model, data, seed, options, by_time=True)


def last_tenth_at_random(model, data, seed, options):
    """The same shares of each user's rows in random order, for data without times."""
    return _last_tenth(model, data, seed, options, by_time=False)


def _last_tenth(model, data, seed, options, by_time):
    X, y = load_all(data, options)
    X_train, y_train, test = split_per_user(X, y, by_time, seed)
    model.fit(X_train, y_train if takes_ratings(model) else None)
    return scores_by_negatives(model, X[:, :2], test, seed)


def full_ranking(model, data, seed, options):
    """Precision@10 over the full catalogue, a fifth of each user's rows held out."""
    train, test = _fedals.split(load(data, options)[0], seed)
    return {"precision@10": _fedals.precision(model.fit(train), train, test)}


def full_ranking_of_silos(model, data, seed, options):
    """The same with the users divided among 20 clients."""
    train, test = _fedals.split(load(data, options)[0], seed)
    model.fit(train, clients=train[:, 0] % N_SILOS)
    sent = model.communication_
    return {
        "precision@10": _fedals.precision(model, train, test),
        "MB per silo": (sent.bytes_up + sent.bytes_down) / len(sent.client_ids) / 1e6,
    }


def full_ranking_by_round(model, data, seed, options):
    """Precision@10 after 5, 10 and 30 rounds, or a tenth of that."""
    train, test = _fedals.split(load(data, options)[0], seed)
    found = {}
    for n in _fedals.ROUNDS:
        n_rounds = max(1, n // 10) if options.quick else n
        model.set_params(n_rounds=n_rounds, warm_start=True).fit(train)
        found[f"precision@10, round {n}"] = _fedals.precision(model, train, test)
    return found


def honest_ranking(model, data, seed, options):
    """Precision@10 of the honest users where some clients are poisoned."""
    train, test = _fedals.split(load(data, options)[0], seed)
    model.fit(train)
    bad = getattr(model, "compromised_clients_", [])
    train, test = (part[~np.isin(part[:, 0], bad)] for part in (train, test))
    return {"precision@10": _fedals.precision(model, train, test)}


def volume(model, data, seed, options):
    """GB that all clients send and receive during the rounds of a fit, and in all of it."""
    model.fit(load(data, options)[0])
    rounds = [one for one in model.communication_.entries if one["phase"] == "round"]
    up, down = (sum(one[name] for one in rounds) / 1e9 for name in ("bytes_up", "bytes_down"))
    total = model.communication_.bytes_up + model.communication_.bytes_down
    return {
        "GB up": up,
        "GB down": down,
        "GB both": up + down,
        "GB with set-up and final download": total / 1e9,
    }
