from privlearn.accounting.budget import Budget as Budget
from privlearn.accounting.guarantee import Adjacency as Adjacency
from privlearn.accounting.guarantee import Guarantee as Guarantee
from privlearn.accounting.guarantee import PrivacyUnit as PrivacyUnit
from privlearn.accounting.ledger import Ledger as Ledger
