"""skorch, Ignite, torchmetrics."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring, GradientNormClipping, LRScheduler
from skorch.dataset import ValidSplit
from torch import nn

from integrations.check import Check
from integrations.toy_data import CLASSES, loader, network, points
from torchport.integrations.random_state import RandomState

with warnings.catch_warnings():
    # Ignite imports torch.distributed.optim, which compiles itself with what PyTorch deprecates.
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.handlers import Checkpoint as IgniteCheckpoint
    from ignite.handlers import DiskSaver
    from ignite.metrics import Accuracy, ConfusionMatrix, Loss, RunningAverage


def skorch_classifier(device: str, folder: Path) -> dict[str, Any]:
    x, y = points(96, seed=1)
    checkpoint = Checkpoint(dirname=folder)
    classifier = NeuralNetClassifier(
        network(),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.01,
        max_epochs=3,
        batch_size=16,
        device=device,
        verbose=0,
        train_split=ValidSplit(4, stratified=True),
        callbacks=[
            LRScheduler("StepLR", step_size=2),
            EarlyStopping(patience=3),
            GradientNormClipping(1.0),
            EpochScoring("f1_macro", lower_is_better=False, name="f1"),
            checkpoint,
        ],
    )
    classifier.fit(x, y)
    history = classifier.history[:, ("train_loss", "valid_loss", "valid_acc", "f1")]
    classifier.load_params(checkpoint=checkpoint)
    again = pickle.loads(pickle.dumps(classifier))
    assert {p.device.type for p in again.module_.parameters()} == {device}
    return {
        "history": [tuple(map(float, row)) for row in history],
        "probabilities": classifier.predict_proba(x[:8]),
        "predictions": again.predict(x),
    }


def ignite_engines(device: str, folder: Path) -> dict[str, Any]:
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optimizer, loss, device=device, non_blocking=True)
    metrics = {
        "accuracy": Accuracy(device=device),
        "loss": Loss(loss, device=device),
        "confusion": ConfusionMatrix(CLASSES, device=device),
    }
    evaluator = create_supervised_evaluator(model, metrics, device=device)
    RunningAverage(output_transform=lambda value: value).attach(trainer, "average")
    kept = {"model": model, "optimizer": optimizer, "trainer": trainer, "random": RandomState()}
    handler = IgniteCheckpoint(kept, DiskSaver(str(folder), require_empty=False), n_saved=1)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    data = loader(64, seed=1, num_workers=2, pin_memory=True)
    found: list[Any] = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate() -> None:
        evaluator.run(data)
        figures = evaluator.state.metrics
        found.append([trainer.state.metrics["average"], figures["accuracy"], figures["loss"], figures["confusion"]])

    trainer.run(data, max_epochs=2)
    saved = torch.load(folder / str(handler.last_checkpoint), weights_only=True, map_location=device)
    IgniteCheckpoint.load_objects(kept, saved)
    return {"evaluated": found, "weights": model.state_dict()}


def metrics_of_torchmetrics(device: str, folder: Path) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(60, 4, generator=generator).softmax(-1).to(device)
    classes = torch.randint(0, 4, (60,), generator=generator).to(device)
    a, b = (torch.randn(60, generator=generator).to(device) for _ in range(2))
    share = torch.rand(60, generator=generator).to(device)
    truth = (torch.rand(60, generator=generator) > 0.5).long().to(device)
    images = [torch.rand(1, 3, 16, 16, generator=generator).to(device) for _ in range(2)]
    query = (torch.arange(60) // 10).to(device)

    def many(metric: Any, **options: Any) -> Any:
        return metric("multiclass", num_classes=4, **options)

    table: dict[str, tuple[Any, ...]] = {
        "accuracy": (many(torchmetrics.Accuracy), scores, classes),
        "top two": (many(torchmetrics.Accuracy, top_k=2), scores, classes),
        "f1": (many(torchmetrics.F1Score, average="macro"), scores, classes),
        "confusion": (many(torchmetrics.ConfusionMatrix), scores, classes),
        "AUROC": (many(torchmetrics.AUROC), scores, classes),
        "AUROC, binned": (many(torchmetrics.AUROC, thresholds=11), scores, classes),
        "average precision": (torchmetrics.AveragePrecision("binary"), share, truth),
        "ROC": (torchmetrics.ROC("binary", thresholds=5), share, truth),
        "precision and recall": (torchmetrics.PrecisionRecallCurve("binary"), share, truth),
        "Matthews": (many(torchmetrics.MatthewsCorrCoef), scores, classes),
        "calibration": (many(torchmetrics.CalibrationError), scores, classes),
        "mean squared error": (torchmetrics.MeanSquaredError(), a, b),
        "R2": (torchmetrics.R2Score(), a, b),
        "Pearson": (torchmetrics.PearsonCorrCoef(), a, b),
        "Spearman": (torchmetrics.SpearmanCorrCoef(), a, b),
        "Kendall": (torchmetrics.KendallRankCorrCoef(), a, b),
        "cosine": (torchmetrics.CosineSimilarity(), a[None], b[None]),
        "perplexity": (torchmetrics.text.Perplexity(), scores.reshape(6, 10, 4), classes.reshape(6, 10)),
        "SSIM": (torchmetrics.image.StructuralSimilarityIndexMeasure(data_range=1.0), *images),
        "PSNR": (torchmetrics.image.PeakSignalNoiseRatio(data_range=1.0), *images),
        "signal to noise": (torchmetrics.audio.SignalNoiseRatio(), a, b),
        "retrieval MAP": (torchmetrics.retrieval.RetrievalMAP(), share, truth, query),
        "retrieval NDCG": (torchmetrics.retrieval.RetrievalNormalizedDCG(), share, truth, query),
    }
    found: dict[str, Any] = {}
    for name, (metric, *arguments) in table.items():
        metric = metric.to(device)
        for _ in range(2):
            metric.update(*arguments)
        found[name] = metric.compute()
        metric.reset()
    return found


CHECKS = [
    Check(
        ("skorch",),
        "`NeuralNetClassifier` with callbacks, checkpoint, pickle, scikit-learn's scores",
        "none",
        skorch_classifier,
    ),
    Check(
        ("pytorch-ignite",),
        "engines with metrics, checkpoints and events",
        "none (`RandomState()` among the objects to save, for dropout)",
        ignite_engines,
    ),
    Check(("torchmetrics",), "23 metrics: `update` twice, `compute`, `reset`", "none", metrics_of_torchmetrics),
]
