from privlearn.sklearn.class_statistics import DPFeatureSelector as DPFeatureSelector
from privlearn.sklearn.class_statistics import DPFisherClassifier as DPFisherClassifier
from privlearn.sklearn.spending import budget_for as budget_for
from privlearn.sklearn.supervised import DPBoostingClassifier as DPBoostingClassifier
from privlearn.sklearn.supervised import DPBoostingRegressor as DPBoostingRegressor
from privlearn.sklearn.supervised import DPClassifier as DPClassifier
from privlearn.sklearn.supervised import DPLogisticRegression as DPLogisticRegression
from privlearn.sklearn.supervised import DPRegressor as DPRegressor
