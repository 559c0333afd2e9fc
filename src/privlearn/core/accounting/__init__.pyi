from privlearn.core.accounting.budget import Budget as Budget
from privlearn.core.accounting.guarantee import Adjacency as Adjacency
from privlearn.core.accounting.guarantee import Guarantee as Guarantee
from privlearn.core.accounting.guarantee import PrivacyUnit as PrivacyUnit
from privlearn.core.accounting.ledger import Ledger as Ledger
