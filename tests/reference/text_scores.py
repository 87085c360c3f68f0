"""Writes text-scores.csv: texts, what they are held against, and sacrebleu's scores of them.

`bleu` and `chrf` of a row are those of the corpus that ends with it; `row_bleu` and `row_chrf` those of the row alone.
Run with sacrebleu 2.6: python text_scores.py > text-scores.csv
"""

import csv
import sys

from sacrebleu.metrics import BLEU, CHRF

ROWS = [
    ("今天天气很好，适合出去散步。", "今天的天气非常好，很适合出门散步。"),
    ("建议 您 多 喝 水 ， 注意 休息 。", "建议您多喝水，注意休息，必要时去医院就诊。"),
    ("The kiln is hot.", "The kiln is very hot."),
    ("", "没有回答的问题也要算进去。"),
    ("好", "好的"),
    ("是", "不"),
    ("苹果公司总部位于加利福尼亚州的库比蒂诺。", "苹果公司（Apple）的总部在美国加利福尼亚州库比蒂诺。"),
    ("我不知道我不知道我不知道我不知道", "我不知道。"),
    ("The quick brown fox jumps over the lazy dog", "The quick brown fox jumps over the lazy dog"),
    ("a longer answer than what was asked for, with many words that nobody needs", "a short answer"),
    ("\tspaces \n and\u3000全角空格 count for nothing ", "spaces and 全角空格count for nothing"),
    ("naïve café – “quotes” … 😀👍🏽", "naive cafe - \"quotes\" ... 😀👍🏽"),
    ("高血压患者应当低盐饮食，规律服药，定期测量血压，避免情绪激动，适当参加体育锻炼。",
     "高血压患者要注意低盐低脂饮食，按时服药，定期监测血压，保持情绪稳定，并且适当运动。"),
    ("答案是42", "答案是 42 。"),
    ("完全 无关 的 句子", "The reference speaks another language."),
    ("something for nothing", ""),
]


def scores(rows):
    hypotheses, references = [row[0] for row in rows], [[row[1] for row in rows]]
    bleu = BLEU(tokenize="char", smooth_method="none").corpus_score(hypotheses, references).score
    return bleu, CHRF().corpus_score(hypotheses, references).score


table = csv.writer(sys.stdout, lineterminator="\n")
table.writerow(["hypothesis", "reference", "bleu", "chrf", "row_bleu", "row_chrf"])
for end in range(1, len(ROWS) + 1):
    figures = (*scores(ROWS[:end]), *scores(ROWS[end - 1 : end]))
    table.writerow([*ROWS[end - 1], *(f"{figure:.10f}" for figure in figures)])
